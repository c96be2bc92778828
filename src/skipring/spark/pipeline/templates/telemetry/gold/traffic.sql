-- window: 1m
SELECT window_start, topic, publisher, count(*) AS publications, sum(value_bytes) AS value_bytes
FROM silver GROUP BY window_start, topic, publisher
