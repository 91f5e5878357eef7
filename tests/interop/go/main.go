// SPDX-License-Identifier: Apache-2.0

// The official Go client as a process that executes commands: one JSON object per line on standard input, one answer
// per line on standard output, {"ok": ...} or {"error": "..."}. It understands the commands of ../java/src/Client.java
// that the Go client has an API for, with the same fields.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
)

// order is a command with its fields. JSON numbers are float64.
type order map[string]any

type command func(order) (any, error)

func main() {
	commands := commands(os.Args[1])
	answers := json.NewEncoder(os.Stdout)
	answers.SetEscapeHTML(false)
	orders := bufio.NewScanner(os.Stdin)
	orders.Buffer(nil, 16<<20)
	for orders.Scan() {
		if err := answers.Encode(answer(commands, orders.Bytes())); err != nil {
			panic(err)
		}
	}
}

func commands(nameServer string) map[string]command {
	producers := newProducers(nameServer)
	consumers := newConsumers(nameServer)
	admin := admins{nameServer}
	return map[string]command{
		"start_producer":      producers.start,
		"stop_producer":       producers.stop,
		"send":                producers.send,
		"send_in_transaction": producers.sendInTransaction,
		"asked":               producers.asked,
		"request":             producers.request,
		"start_push_consumer": consumers.startPush,
		"start_pull_consumer": consumers.startPull,
		"pull":                consumers.pull,
		"stop_consumer":       consumers.stop,
		"received":            consumers.received,
		"admin_create_topic":  admin.createTopic,
		"admin_delete_topic":  admin.deleteTopic,
		"admin_topics":        admin.topics,
		"admin_groups":        admin.groups,
		"admin_queues":        admin.queues,
	}
}

func answer(commands map[string]command, line []byte) (answer map[string]any) {
	defer func() {
		if panicked := recover(); panicked != nil {
			answer = map[string]any{"error": fmt.Sprint("panic: ", panicked)}
		}
	}()
	var given order
	if err := json.Unmarshal(line, &given); err != nil {
		return map[string]any{"error": err.Error()}
	}
	run, known := commands[given.text("command", "")]
	if !known {
		return map[string]any{"error": "no such command"}
	}
	result, err := run(given)
	if err != nil {
		return map[string]any{"error": err.Error()}
	}
	return map[string]any{"ok": result}
}

func (o order) text(field, otherwise string) string {
	if value, ok := o[field].(string); ok {
		return value
	}
	return otherwise
}

func (o order) number(field string, otherwise int) int {
	if value, ok := o[field].(float64); ok {
		return int(value)
	}
	return otherwise
}

func (o order) is(field string) bool {
	value, _ := o[field].(bool)
	return value
}
