// The npm client ali-ons 3.12.0 behind a line protocol: one JSON object in, one out.
//
// Usage: node client.js NAME_SERVER. The body "fail" is consumed at its second try. See
// tests/support/other_clients.py for the commands.
'use strict';

const { createInterface } = require('readline');
const { Consumer, Producer, Message } = require('ali-ons');

const [nameSrv] = process.argv.slice(2);
const silent = { info() {}, warn() {}, debug() {}, error(...said) { console.error(...said); } };
// It does not listen to brokers that tell of members: it looks for them at this interval.
const options = { nameSrv, httpclient: {}, logger: silent, rebalanceInterval: 300 };
const consumers = {};
const received = [];
let producer;

const commands = {
  async send({ topic, bodies }) {
    if (!producer) {
      producer = new Producer({ ...options, producerGroup: 'node-producers' });
      await producer.ready();
    }
    const statuses = [];
    for (const body of bodies) {
      statuses.push((await producer.send(new Message(topic, 'a', body))).sendStatus);
    }
    return { statuses };
  },

  async consume({ topic, name }) {
    const consumer = new Consumer(
      { ...options, consumerGroup: 'node-consumers', instanceName: name });
    consumer.subscribe(topic, 'a || b', async message => {
      const body = message.body.toString();
      received.push([body, message.reconsumeTimes, message.tags, message.queueId, name]);
      if (body === 'fail' && message.reconsumeTimes === 0) throw new Error('tried again');
    });
    consumers[name] = consumer;
    await consumer.ready();
  },

  async received({ count, seconds }) {
    const end = Date.now() + seconds * 1000;
    while (received.length < count && Date.now() < end) {
      await new Promise(done => setTimeout(done, 20));
    }
    return { messages: received.splice(0, count) };
  },

  async close({ name }) {
    await consumers[name].close();
    delete consumers[name];
  },

  async exit() {
    for (const one of Object.values(consumers)) await one.close();
    if (producer) await producer.close();
  },
};

async function main() {
  for await (const line of createInterface({ input: process.stdin })) {
    const { cmd, ...asked } = JSON.parse(line);
    let result;
    try {
      result = { ok: true, ...await commands[cmd](asked) };
    } catch (failure) {
      result = { ok: false, error: String(failure) };
    }
    console.log(JSON.stringify(result));
    if (cmd === 'exit') process.exit(0);
  }
}

main();
