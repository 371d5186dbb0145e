// The Go client v2 behind a line protocol: one JSON object in, one JSON object out.
//
// Usage: goclient NAME_SERVER. The body "fail" is consumed at its second try. See
// tests/support/other_clients.py for the commands.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

type command struct {
	Cmd, Topic, Name string
	Bodies           []string
	Count            int
	Seconds          float64
}

type answer map[string]any

type client struct {
	servers   primitive.NsResolver
	sender    rocketmq.Producer
	consumers map[string]rocketmq.PushConsumer
	received  chan []any
}

func main() {
	servers := primitive.NewPassthroughResolver(os.Args[1:2])
	it := client{servers, nil, map[string]rocketmq.PushConsumer{}, make(chan []any, 100000)}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	answers := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var asked command
		result := answer{}
		failure := json.Unmarshal(lines.Bytes(), &asked)
		if failure == nil {
			failure = it.run(asked, result)
		}
		result["ok"] = failure == nil
		if failure != nil {
			result["error"] = failure.Error()
		}
		answers.Encode(result)
		if asked.Cmd == "exit" {
			return
		}
	}
}

func (it *client) run(asked command, result answer) error {
	switch asked.Cmd {
	case "send":
		return it.send(asked, result)
	case "consume":
		return it.consume(asked)
	case "received":
		result["messages"] = it.take(asked)
	case "close":
		return it.consumers[asked.Name].Shutdown()
	case "exit":
		for _, one := range it.consumers {
			one.Shutdown()
		}
		if it.sender != nil {
			return it.sender.Shutdown()
		}
	default:
		return fmt.Errorf("no command %q", asked.Cmd)
	}
	return nil
}

func (it *client) send(asked command, result answer) error {
	if it.sender == nil {
		made, failure := rocketmq.NewProducer(
			producer.WithNsResolver(it.servers), producer.WithGroupName("go-producers"))
		if failure == nil {
			failure = made.Start()
		}
		if failure != nil {
			return failure
		}
		it.sender = made
	}
	statuses := []int{}
	for _, body := range asked.Bodies {
		message := primitive.NewMessage(asked.Topic, []byte(body)).WithTag("a").WithKeys([]string{"k"})
		sent, failure := it.sender.SendSync(context.Background(), message)
		if failure != nil {
			return failure
		}
		statuses = append(statuses, int(sent.Status))
	}
	result["statuses"] = statuses
	return nil
}

func (it *client) consume(asked command) error {
	made, failure := rocketmq.NewPushConsumer(
		consumer.WithNsResolver(it.servers), consumer.WithGroupName("go-consumers"),
		consumer.WithInstance(asked.Name),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	if failure != nil {
		return failure
	}
	tags := consumer.MessageSelector{Type: consumer.TAG, Expression: "a || b"}
	failure = made.Subscribe(asked.Topic, tags, func(
		_ context.Context, messages ...*primitive.MessageExt,
	) (consumer.ConsumeResult, error) {
		result := consumer.ConsumeSuccess
		for _, one := range messages {
			body := string(one.Body)
			it.received <- []any{body, one.ReconsumeTimes, one.GetTags(), one.Queue.QueueId, asked.Name}
			if body == "fail" && one.ReconsumeTimes == 0 {
				result = consumer.ConsumeRetryLater
			}
		}
		return result, nil
	})
	if failure != nil {
		return failure
	}
	it.consumers[asked.Name] = made
	return made.Start()
}

// take returns so many messages, fewer where they do not come in time.
func (it *client) take(asked command) [][]any {
	found := [][]any{}
	end := time.After(time.Duration(asked.Seconds * float64(time.Second)))
	for len(found) < asked.Count {
		select {
		case one := <-it.received:
			found = append(found, one)
		case <-end:
			return found
		}
	}
	return found
}
