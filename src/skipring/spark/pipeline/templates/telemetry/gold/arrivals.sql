-- window: 1m
-- of: deliveries
-- lookback: 10m
-- Windows of the time of arrival. The latency is that of the broadcast, from two clocks. Repairs do
-- not count for it: a node that joins late receives publications that are old.
WITH arrived AS (
  SELECT d.*, CASE WHEN d.origin = 'spread'
    THEN (unix_micros(d.arrived) - unix_micros(s.timestamp)) / 1000 END AS latency_ms
  FROM deliveries d LEFT JOIN silver s ON d.id = s.id
  WHERE d.origin <> 'own'
)
SELECT window_start, topic, node, count(*) AS deliveries,
  count_if(origin = 'repair') AS repairs,
  approx_percentile(latency_ms, 0.5) AS latency_p50_ms,
  approx_percentile(latency_ms, 0.95) AS latency_p95_ms,
  approx_percentile(latency_ms, 0.99) AS latency_p99_ms,
  avg(CASE WHEN origin = 'spread' THEN hops END) AS hops_mean
FROM arrived GROUP BY window_start, topic, node
