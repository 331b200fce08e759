package machine

// LockedMemory says how much memory this process may pin for NICs, and how to
// have more.
func LockedMemory() Finding { return lockedMemory() }
