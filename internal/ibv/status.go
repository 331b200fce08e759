package ibv

// WCStatus is how a work request ended; the values are libibverbs' own.
type WCStatus uint32

const (
	WCSuccess           WCStatus = 0
	WCLocalLength       WCStatus = 1
	WCLocalQPOp         WCStatus = 2
	WCLocalProtection   WCStatus = 4
	WCFlushed           WCStatus = 5
	WCBadResponse       WCStatus = 7
	WCLocalAccess       WCStatus = 8
	WCRemoteInvalid     WCStatus = 9
	WCRemoteAccess      WCStatus = 10
	WCRemoteOp          WCStatus = 11
	WCRetryExceeded     WCStatus = 12
	WCReceiverNotReady  WCStatus = 13
	WCRemoteInvalidRead WCStatus = 15
	WCRemoteAborted     WCStatus = 16
	WCFatal             WCStatus = 19
	WCResponseTimeout   WCStatus = 20
	WCGeneral           WCStatus = 21
)

var wcText = [...]string{
	"success", "local length error", "local QP operation error", "local EE context error", "local protection error",
	"work request flushed", "memory window bind error", "bad response", "local access error", "remote invalid request",
	"remote access error", "remote operation error", "transport retries exceeded", "receiver-not-ready retries exceeded",
	"local RDD violation", "remote invalid read request", "remote aborted", "invalid EE context number",
	"invalid EE context state", "fatal error", "response timeout", "general error", "tag matching error", "tag matching rendezvous incomplete",
}

func (s WCStatus) String() string {
	if int(s) < len(wcText) {
		return wcText[s]
	}
	return "unknown completion status"
}
