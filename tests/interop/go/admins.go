// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"time"

	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// admins executes each command with a new admin client.
type admins struct {
	nameServer string
}

func (a admins) with(run func(admin.Admin) (any, error)) (any, error) {
	resolver := primitive.NewPassthroughResolver([]string{a.nameServer})
	client, err := admin.NewAdmin(admin.WithResolver(resolver))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return run(client)
}

func (a admins) createTopic(o order) (any, error) {
	return a.with(func(client admin.Admin) (any, error) {
		return nil, client.CreateTopic(
			context.Background(),
			admin.WithTopicCreate(o.text("topic", "")),
			admin.WithBrokerAddrCreate(o.text("broker", "")),
			admin.WithReadQueueNums(o.number("queues", 8)),
			admin.WithWriteQueueNums(o.number("queues", 8)),
		)
	})
}

// deleteTopic finds the broker by the topic's route.
func (a admins) deleteTopic(o order) (any, error) {
	return a.with(func(client admin.Admin) (any, error) {
		return nil, client.DeleteTopic(context.Background(), admin.WithTopicDelete(o.text("topic", "")))
	})
}

func (a admins) topics(order) (any, error) {
	return a.with(func(client admin.Admin) (any, error) {
		found, err := client.FetchAllTopicList(context.Background())
		if err != nil {
			return nil, err
		}
		return found.TopicList, nil
	})
}

func (a admins) groups(o order) (any, error) {
	return a.with(func(client admin.Admin) (any, error) {
		found, err := client.GetAllSubscriptionGroup(context.Background(), o.text("broker", ""), 5*time.Second)
		if err != nil {
			return nil, err
		}
		return found.SubscriptionGroupTable, nil
	})
}

func (a admins) queues(o order) (any, error) {
	return a.with(func(client admin.Admin) (any, error) {
		return client.FetchPublishMessageQueues(context.Background(), o.text("topic", ""))
	})
}
