// Package topo reads where the GPUs, NICs and cores of a machine are, and says
// which NIC ports should serve which GPU.
//
//	sysfs --Read--> System: GPUs, RDMA devices with ports and GIDs, interfaces, NUMA nodes
//	                   |
//	                Assign --> for each GPU its ports, the path to each, its cores;
//	                           for each port that serves no GPU, why
//
// Everything is known by its PCI address, never by its place in a list: what
// CUDA_VISIBLE_DEVICES hides or reorders does not move a NIC to another GPU.
// Nothing is left out silently. A device that cannot be read in full is listed
// with what is known, and System.Problems says what was wrong; a GPU without a
// port and a port without a GPU come with a reason.
//
// The root of the tree is a parameter, so that a test, or a bug report, can bring
// its own machine. A tree is taken for hostile: links that loop or leave the
// root, files that are no files, numbers out of range are problems, and reading
// is bounded.
package topo
