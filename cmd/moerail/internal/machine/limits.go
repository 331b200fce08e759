package machine

// LockedMemory says how much memory this process may pin for NICs, and how to
// have more.
func LockedMemory() Finding {
	limit, err := lockedLimit()
	if err != nil {
		return Finding{"locked memory", Poor, err.Error(), "allow getrlimit in the container's seccomp profile"}
	}
	return lockedMemory(limit, rdmaDevices("/").State != Absent)
}
