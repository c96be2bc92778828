-- window: 1h
SELECT window_start, item, count(*) AS orders, approx_percentile(amount, 0.5) AS median_amount
FROM silver GROUP BY window_start, item
