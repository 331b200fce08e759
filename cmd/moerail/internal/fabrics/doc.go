// Package fabrics turns the name that a user gives a fabric into providers.
//
//	auto --Resolve--> loopback | shm | verbs | efa | libfabric:PROVIDER --Open--> Set
//	                                                                               |
//	                             one provider for each process; loopback: one rank's view each
//
// Which of a machine's interfaces carry a fabric is settled here too: see EnvNICs.
package fabrics
