"""Systems that the benchmarks drive: skipring, brokers, brokerless peers and a bare relay."""
