// Send with the npm client ali-ons 3.12.0 and consume what was sent; a line of JSON each.
//
// Usage: node client.js NAME_SERVER. The body "fail" is consumed at its second try.
'use strict';

const { Consumer, Producer, Message } = require('ali-ons');

const [nameSrv] = process.argv.slice(2);
const silent = { info() {}, warn() {}, debug() {}, error(...said) { console.error(...said); } };
const options = { nameSrv, httpclient: {}, logger: silent };
const sent = ['one', 'two', 'fail'];

async function main() {
  const producer = new Producer({ ...options, producerGroup: 'node-producers' });
  await producer.ready();
  const results = [];
  for (const body of sent) {
    results.push((await producer.send(new Message('node', 'a', body))).sendStatus);
  }
  console.log(JSON.stringify(results));

  const received = [];
  const consumer = new Consumer({ ...options, consumerGroup: 'node-consumers' });
  const all = new Promise(done => {
    consumer.subscribe('node', 'a || b', async message => {
      received.push([message.body.toString(), message.reconsumeTimes, message.tags]);
      if (received.length > sent.length) done();
      const isFirstTry = message.body.toString() === 'fail' && message.reconsumeTimes === 0;
      if (isFirstTry) throw new Error('tried again');
    });
  });
  await consumer.ready();
  await Promise.race([all, new Promise(done => setTimeout(done, 120000))]);
  console.log(JSON.stringify(received.sort()));
  await consumer.close();
  await producer.close();
  process.exit(0);
}

main();
