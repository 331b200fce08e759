//go:build verbs && cgo && linux

package verbs

import (
	"time"
)

// sayBye tells peers that this domain closes. What the device does not take, or
// loses, they find out by retrying.
func (d *domain) sayBye() {
	if d.fatal != nil {
		return
	}
	for _, l := range d.links {
		l.outbox = 0
		if !l.self && (l.state == linkReady || l.state == linkDialing) {
			d.mail.send(l, kindBye)
		}
	}
	for limit := time.Now().Add(farewell); d.fatal == nil && time.Now().Before(limit); {
		d.flushMail()
		if len(d.mail.out) == 0 && len(d.mail.free) == mailSends {
			return
		}
		k := d.step(stepWCs)
		for i := range k {
			if w := d.queue.Completion(i); w.ID&idKind == idMailSend {
				d.sent(w.ID&^idKind, w)
			}
		}
	}
}
