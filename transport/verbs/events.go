//go:build verbs && cgo && linux

package verbs

import (
	"errors"
	"fmt"
	"time"

	"moerail/internal/ibv"
	"moerail/transport"
)

// maxEvents bounds how many events one look takes.
const maxEvents = 64

func (d *domain) portDown(why string) error {
	return fmt.Errorf("%w: verbs: %s is down: %s", transport.ErrPeerLost, d.where(), why)
}

// events takes what the device has to say besides completions.
func (d *domain) events(now time.Time) {
	for range maxEvents {
		e, ok, err := d.dev.Event()
		if err != nil {
			d.fail(err)
			return
		}
		if !ok {
			return
		}
		d.event(e, now)
	}
}

func (d *domain) event(e ibv.Event, now time.Time) {
	if e.Port != 0 && e.Port != d.port {
		return
	}
	switch e.Type {
	case ibv.EventDeviceFatal:
		d.fail(errors.New("the device reports a fatal error (IBV_EVENT_DEVICE_FATAL)"))
	case ibv.EventCQError:
		d.fail(errors.New("the completion queue has failed (IBV_EVENT_CQ_ERR)"))
	case ibv.EventSRQError:
		d.fail(errors.New("a receive queue has failed (IBV_EVENT_SRQ_ERR)"))
	case ibv.EventPortError:
		d.down = d.portDown("the device says so (IBV_EVENT_PORT_ERR)")
	case ibv.EventPortActive:
		d.down = nil
		for _, l := range d.links {
			if l.state == linkLost {
				l.next, l.pause, d.nextTick = now, firstPause, now
			}
		}
		d.checkAddress("IBV_EVENT_PORT_ACTIVE")
	case ibv.EventGIDChange:
		d.checkAddress("IBV_EVENT_GID_CHANGE")
	case ibv.EventLIDChange:
		d.checkAddress("IBV_EVENT_LID_CHANGE")
	case ibv.EventQPFatal, ibv.EventQPRequest, ibv.EventQPAccess:
		if q := d.byQP[e.QP]; q != nil && !q.failed {
			d.rebuild(q)
		} else if e.QP == d.mail.qp.Number {
			d.fail(errors.New("the queue pair of handshakes has failed"))
		}
	}
}

// checkAddress looks whether peers still find us where our address says.
func (d *domain) checkAddress(event string) {
	table, err := d.dev.GIDs()
	if err != nil {
		d.fail(fmt.Errorf("after %s: %w", event, err))
		return
	}
	found := false
	for _, e := range table {
		found = found || e == d.gid
	}
	if !found {
		d.fail(fmt.Errorf("GID %d, %s, is gone (%s): peers can not reach this address any more", d.gid.Index, gidText(d.gid.GID), event))
		return
	}
	if d.id.ethernet {
		return
	}
	port, err := d.dev.Port(d.port)
	if err != nil {
		d.fail(fmt.Errorf("after %s: %w", event, err))
	} else if port.LID != d.id.lid {
		d.fail(fmt.Errorf("the LID was %d and is %d (%s): peers can not reach this address any more", d.id.lid, port.LID, event))
	}
}
