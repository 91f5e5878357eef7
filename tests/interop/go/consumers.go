// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"strings"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// running is a started consumer, with the operations that both kinds share.
type running struct {
	inbox *inbox
	pull  rocketmq.PullConsumer
	stop  func() error
}

type consumers struct {
	nameServer string
	started    map[string]*running
}

func newConsumers(nameServer string) *consumers {
	return &consumers{nameServer, map[string]*running{}}
}

// options returns what both kinds of consumers need. Consumers of one instance name share a connection.
func (c *consumers) options(o order) []consumer.Option {
	return []consumer.Option{
		consumer.WithNameServer(primitive.NamesrvAddr{c.nameServer}),
		consumer.WithInstance(o.text("id", "")),
		consumer.WithGroupName(o.text("group", "")),
	}
}

func selector(o order) consumer.MessageSelector {
	if sql := o.text("sql", ""); sql != "" {
		return consumer.MessageSelector{Type: consumer.SQL92, Expression: sql}
	}
	return consumer.MessageSelector{Type: consumer.TAG, Expression: o.text("expression", "*")}
}

func fromWhere(o order) consumer.ConsumeFromWhere {
	if o.text("from", "CONSUME_FROM_FIRST_OFFSET") == "CONSUME_FROM_LAST_OFFSET" {
		return consumer.ConsumeFromLastOffset
	}
	return consumer.ConsumeFromFirstOffset
}

func (c *consumers) startPush(o order) (any, error) {
	options := append(c.options(o), consumer.WithConsumeFromWhere(fromWhere(o)), consumer.WithConsumerOrder(o.is("orderly")))
	if o.text("model", "") == "BROADCASTING" {
		options = append(options, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	if limit := o.number("retriesMax", -1); limit >= 0 {
		options = append(options, consumer.WithMaxReconsumeTimes(int32(limit)))
	}
	if o.is("trace") {
		options = append(options, consumer.WithTrace(traceTo(c.nameServer)))
	}
	pushed, err := rocketmq.NewPushConsumer(options...)
	if err != nil {
		return nil, err
	}
	var replies rocketmq.Producer
	if o.is("replies") {
		if replies, err = c.replies(o); err != nil {
			return nil, err
		}
	}
	inbox := newInbox()
	refusals, level := int32(o.number("refusals", 0)), o.number("refusalLevel", 0)
	handle := func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		inbox.add(messages...)
		if replies != nil {
			if err := reply(replies, messages); err != nil {
				return consumer.ConsumeRetryLater, err
			}
		}
		if messages[0].ReconsumeTimes >= refusals {
			return consumer.ConsumeSuccess, nil
		}
		if orderly, ok := primitive.GetOrderlyCtx(ctx); ok {
			orderly.SuspendCurrentQueueTimeMillis = 100
			return consumer.SuspendCurrentQueueAMoment, nil
		}
		if concurrently, ok := primitive.GetConcurrentlyCtx(ctx); ok {
			concurrently.DelayLevelWhenNextConsume = level
		}
		return consumer.ConsumeRetryLater, nil
	}
	if err := pushed.Subscribe(o.text("topic", ""), selector(o), handle); err != nil {
		return nil, err
	}
	c.started[o.text("id", "")] = &running{inbox, nil, func() error {
		if replies != nil {
			_ = replies.Shutdown()
		}
		settle(pushed)
		return pushed.Shutdown()
	}}
	return nil, pushed.Start()
}

// settle waits until the offsets of all received messages are known to the consumer: it commits them at its end, but does
// not wait for handlers that have just returned.
func settle(pushed rocketmq.PushConsumer) {
	deadline := time.Now().Add(5 * time.Second)
	for behind := int64(1); behind > 0 && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		behind = 0
		for _, messages := range pushed.GetOffsetDiffMap() {
			behind += messages
		}
	}
}

func (c *consumers) replies(o order) (rocketmq.Producer, error) {
	replies, err := rocketmq.NewProducer(
		producer.WithNameServer(primitive.NamesrvAddr{c.nameServer}),
		producer.WithInstanceName(o.text("id", "")+"-replies"),
		producer.WithGroupName("replies"),
	)
	if err != nil {
		return nil, err
	}
	return replies, replies.Start()
}

// reply replies to each request with its text in capitals.
func reply(replies rocketmq.Producer, requests []*primitive.MessageExt) error {
	for _, request := range requests {
		if consumer.GetReplyToClient(request) == "" {
			continue
		}
		body := []byte(strings.ToUpper(string(request.Body)))
		made, err := consumer.CreateReplyMessage(request, body)
		if err != nil {
			return err
		}
		made.Body = body // the client reads properties from the given body and forgets it
		if _, err := replies.SendSync(context.Background(), made); err != nil {
			return err
		}
	}
	return nil
}

// startPull starts a pull consumer with default options, which ask the broker for 0 messages at a time. It polls and
// acknowledges in the background, unless the test pulls by itself.
func (c *consumers) startPull(o order) (any, error) {
	options := append(c.options(o), consumer.WithConsumeFromWhere(fromWhere(o)))
	if size := o.number("batchSize", 0); size > 0 {
		options = append(options, consumer.WithPullBatchSize(int32(size)))
	}
	pulling, err := rocketmq.NewPullConsumer(options...)
	if err != nil {
		return nil, err
	}
	if err := pulling.Subscribe(o.text("topic", ""), selector(o)); err != nil {
		return nil, err
	}
	inbox, stopping, stopped := newInbox(), make(chan struct{}), make(chan struct{})
	c.started[o.text("id", "")] = &running{inbox, pulling, func() error {
		close(stopping)
		<-stopped
		return pulling.Shutdown()
	}}
	if err := pulling.Start(); err != nil {
		close(stopped)
		return nil, err
	}
	go func() {
		defer close(stopped)
		for !o.is("manual") {
			select {
			case <-stopping:
				return
			default:
			}
			if polled, err := pulling.Poll(context.Background(), 100*time.Millisecond); err == nil {
				inbox.add(polled.GetMsgList()...)
				pulling.ACK(context.Background(), polled, consumer.ConsumeSuccess)
			}
		}
	}()
	return nil, nil
}

// pull pulls from a queue at an offset, or from the next assigned queue at its committed offset, which it advances.
func (c *consumers) pull(o order) (any, error) {
	pulling := c.started[o.text("id", "")].pull
	if pulling == nil {
		return nil, errors.New("not a pull consumer")
	}
	count := o.number("count", 32)
	pulled := newInbox()
	if broker := o.text("broker", ""); broker != "" {
		queue := &primitive.MessageQueue{Topic: o.text("topic", ""), BrokerName: broker, QueueId: o.number("queueId", 0)}
		result, err := pulling.PullFrom(context.Background(), queue, int64(o.number("offset", 0)), count)
		if err != nil {
			return nil, err
		}
		pulled.add(result.GetMessageExts()...)
		return pulled.drain(nil), nil
	}
	result, err := pulling.Pull(context.Background(), count)
	if err != nil {
		return nil, err
	}
	for _, message := range result.GetMessageExts() {
		pulled.add(message)
		if err := pulling.UpdateOffset(message.Queue, result.NextBeginOffset); err != nil {
			return nil, err
		}
	}
	return pulled.drain(nil), pulling.PersistOffset(context.Background(), o.text("topic", ""))
}

// stop stops the consumer and returns the remaining messages: for the broker they are consumed.
func (c *consumers) stop(o order) (any, error) {
	stopping := c.started[o.text("id", "")]
	err := stopping.stop()
	return stopping.inbox.drain(nil), err
}

func (c *consumers) received(o order) (any, error) {
	return c.started[o.text("id", "")].inbox.drain(o), nil
}
