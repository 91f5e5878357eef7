// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"sync"

	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// transactions ends a transaction with the state that the command names. Each check-back is answered with the next word
// of the message's "answers" property.
type transactions struct {
	state     primitive.LocalTransactionState
	asked     *inbox
	mutex     sync.Mutex
	questions map[string]int
}

func (t *transactions) ExecuteLocalTransaction(*primitive.Message) primitive.LocalTransactionState {
	return t.state
}

func (t *transactions) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	t.asked.add(message)
	t.mutex.Lock()
	defer t.mutex.Unlock()
	question := t.questions[message.TransactionId]
	t.questions[message.TransactionId]++
	return state(strings.Fields(message.GetProperty("answers"))[question])
}

// state returns the state of a name in Java's spelling.
func state(name string) primitive.LocalTransactionState {
	switch name {
	case "COMMIT_MESSAGE":
		return primitive.CommitMessageState
	case "ROLLBACK_MESSAGE":
		return primitive.RollbackMessageState
	default:
		return primitive.UnknowState
	}
}
