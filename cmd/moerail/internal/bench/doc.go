// Package bench is behind `moerail bench`: it starts the ranks of a measurement
// and makes its report. What is measured is in bench/micro.
package bench
