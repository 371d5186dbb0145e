"""The broker beside the genuine one of Apache RocketMQ 4.9: see bench/README.md."""
