// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

type producers struct {
	nameServer    string
	plain         map[string]rocketmq.Producer
	transactional map[string]rocketmq.TransactionProducer
	listeners     map[string]*transactions
}

func newProducers(nameServer string) *producers {
	return &producers{
		nameServer:    nameServer,
		plain:         map[string]rocketmq.Producer{},
		transactional: map[string]rocketmq.TransactionProducer{},
		listeners:     map[string]*transactions{},
	}
}

// start starts a producer with an own connection: producers of one instance name share one.
func (p *producers) start(o order) (any, error) {
	id := o.text("id", "")
	options := []producer.Option{
		producer.WithNameServer(primitive.NamesrvAddr{p.nameServer}),
		producer.WithInstanceName(id),
		producer.WithGroupName(o.text("group", "")),
	}
	switch o.text("selector", "") {
	case "hash":
		options = append(options, producer.WithQueueSelector(producer.NewHashQueueSelector()))
	case "manual":
		options = append(options, producer.WithQueueSelector(producer.NewManualQueueSelector()))
	case "random":
		options = append(options, producer.WithQueueSelector(producer.NewRandomQueueSelector()))
	}
	if o.is("trace") {
		options = append(options, producer.WithTrace(traceTo(p.nameServer)))
	}
	if o.is("transactional") {
		listener := &transactions{questions: map[string]int{}, asked: newInbox()}
		started, err := rocketmq.NewTransactionProducer(listener, options...)
		if err != nil {
			return nil, err
		}
		p.transactional[id], p.listeners[id] = started, listener
		return nil, started.Start()
	}
	started, err := rocketmq.NewProducer(options...)
	if err != nil {
		return nil, err
	}
	p.plain[id] = started
	return nil, started.Start()
}

func traceTo(nameServer string) *primitive.TraceConfig {
	return &primitive.TraceConfig{GroupName: "go_traces", Access: primitive.Local, NamesrvAddrs: []string{nameServer}}
}

func (p *producers) stop(o order) (any, error) {
	id := o.text("id", "")
	if started, ok := p.transactional[id]; ok {
		return nil, started.Shutdown()
	}
	return nil, p.plain[id].Shutdown()
}

func (p *producers) send(o order) (any, error) {
	sender, ctx := p.plain[o.text("id", "")], context.Background()
	var messages []*primitive.Message
	for _, one := range o["messages"].([]any) {
		messages = append(messages, message(o.text("topic", ""), one.(map[string]any)))
	}
	results := []map[string]any{}
	switch mode := o.text("mode", "sync"); mode {
	case "sync":
		for _, one := range messages {
			result, err := sender.SendSync(ctx, one)
			if err != nil {
				return nil, err
			}
			results = append(results, sent(result))
		}
	case "batch":
		result, err := sender.SendSync(ctx, messages...)
		if err != nil {
			return nil, err
		}
		results = append(results, sent(result))
	case "async":
		return sendAsync(sender, messages)
	case "oneway":
		for _, one := range messages {
			if err := sender.SendOneWay(ctx, one); err != nil {
				return nil, err
			}
		}
	default:
		return nil, fmt.Errorf("no mode %s", mode)
	}
	return results, nil
}

func sendAsync(sender rocketmq.Producer, messages []*primitive.Message) (any, error) {
	results, failures := make([]map[string]any, len(messages)), make([]error, len(messages))
	var pending sync.WaitGroup
	for n, one := range messages {
		pending.Add(1)
		err := sender.SendAsync(context.Background(), func(_ context.Context, result *primitive.SendResult, err error) {
			defer pending.Done()
			if failures[n] = err; err == nil {
				results[n] = sent(result)
			}
		}, one)
		if err != nil {
			return nil, err
		}
	}
	pending.Wait()
	for _, err := range failures {
		if err != nil {
			return nil, err
		}
	}
	return results, nil
}

// request waits for the reply and returns its text.
func (p *producers) request(o order) (any, error) {
	sender := p.plain[o.text("id", "")]
	asked := message(o.text("topic", ""), o["message"].(map[string]any))
	timeout := time.Duration(o.number("timeoutMs", 20_000)) * time.Millisecond
	if o.text("mode", "sync") == "sync" {
		reply, err := sender.Request(context.Background(), timeout, asked)
		if err != nil {
			return nil, err
		}
		return string(reply.Body), nil
	}
	type outcome struct {
		reply *primitive.Message
		err   error
	}
	// Room for two: the client calls back a second time when it forgets the request.
	outcomes := make(chan outcome, 2)
	err := sender.RequestAsync(context.Background(), timeout, func(_ context.Context, reply *primitive.Message, err error) {
		outcomes <- outcome{reply, err}
	}, asked)
	if err != nil {
		return nil, err
	}
	first := <-outcomes
	if first.err != nil {
		return nil, first.err
	}
	return string(first.reply.Body), nil
}

func (p *producers) sendInTransaction(o order) (any, error) {
	id := o.text("id", "")
	p.listeners[id].state = state(o.text("state", ""))
	half := message(o.text("topic", ""), o["message"].(map[string]any))
	result, err := p.transactional[id].SendMessageInTransaction(context.Background(), half)
	if err != nil {
		return nil, err
	}
	return sent(result.SendResult), nil
}

func (p *producers) asked(o order) (any, error) {
	return p.listeners[o.text("id", "")].asked.drain(o), nil
}

// message makes a message of a body and optional tags, keys, properties, hash, delayLevel, or queueId and broker.
func message(topic string, fields order) *primitive.Message {
	made := primitive.NewMessage(topic, []byte(fields.text("body", "")))
	made.WithTag(fields.text("tags", ""))
	made.WithKeys(strings.Fields(fields.text("keys", "")))
	made.WithShardingKey(fields.text("hash", ""))
	if level := fields.number("delayLevel", 0); level > 0 {
		made.WithDelayTimeLevel(level)
	}
	if broker := fields.text("broker", ""); broker != "" {
		made.Queue = &primitive.MessageQueue{Topic: topic, BrokerName: broker, QueueId: fields.number("queueId", 0)}
	}
	properties, _ := fields["properties"].(map[string]any)
	for name, value := range properties {
		made.WithProperty(name, value.(string))
	}
	return made
}

func sent(result *primitive.SendResult) map[string]any {
	status := "SEND_OK"
	if result.Status != primitive.SendOK {
		status = fmt.Sprint("status ", result.Status)
	}
	return map[string]any{
		"status":      status,
		"msgId":       result.MsgID,
		"offsetMsgId": result.OffsetMsgID,
		"queueId":     result.MessageQueue.QueueId,
		"queueOffset": result.QueueOffset,
		"broker":      result.MessageQueue.BrokerName,
	}
}
