// SPDX-License-Identifier: Apache-2.0

package main

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// received is the number of messages that all inboxes of this process got.
var received atomic.Int64

// inbox keeps messages until a test asks for them.
type inbox struct {
	mutex    sync.Mutex
	messages []map[string]any
	arrived  chan struct{}
}

func newInbox() *inbox {
	return &inbox{arrived: make(chan struct{}, 1)}
}

func (i *inbox) add(messages ...*primitive.MessageExt) {
	i.mutex.Lock()
	for _, message := range messages {
		i.messages = append(i.messages, describe(message))
	}
	i.mutex.Unlock()
	select {
	case i.arrived <- struct{}{}:
	default:
	}
}

// drain returns all messages, at the latest when the time is over, and else when there are enough of them.
func (i *inbox) drain(o order) []map[string]any {
	deadline := time.After(time.Duration(o.number("timeoutMs", 0)) * time.Millisecond)
	for waiting := true; waiting && i.size() < o.number("atLeast", 0); {
		select {
		case <-i.arrived:
		case <-deadline:
			waiting = false
		}
	}
	i.mutex.Lock()
	defer i.mutex.Unlock()
	drained := i.messages
	i.messages = nil
	return append([]map[string]any{}, drained...)
}

func (i *inbox) size() int {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	return len(i.messages)
}

func describe(message *primitive.MessageExt) map[string]any {
	return map[string]any{
		"topic":          message.Topic,
		"queueId":        message.Queue.QueueId,
		"queueOffset":    message.QueueOffset,
		"msgId":          orNull(message.GetProperty(primitive.PropertyUniqueClientMessageIdKeyIndex)),
		"offsetMsgId":    message.OffsetMsgId,
		"body":           string(message.Body),
		"tags":           orNull(message.GetTags()),
		"keys":           orNull(message.GetKeys()),
		"storeTimestamp": message.StoreTimestamp,
		"reconsumeTimes": message.ReconsumeTimes,
		"properties":     message.GetProperties(),
		"nth":            received.Add(1),
	}
}

// orNull returns nil for a property that the message does not have; the Go client knows only "".
func orNull(property string) any {
	if property == "" {
		return nil
	}
	return property
}
