"""Events to a broker and from one.

    outbox rows --> relay.py --> brokers/ --> NATS JetStream, RabbitMQ, Kafka
    a broker --> consume.py --> inbox --> one job per event

The architecture page is README.md beside this file.
"""
