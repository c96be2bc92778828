-- window: 1m
SELECT window_start, topic, count(*) AS publications, sum(amount) AS amount
FROM silver GROUP BY window_start, topic
