-- The revenue of each city, computed from the table.
CREATE MATERIALIZED VIEW revenue AS
SELECT city, count(*) AS orders, sum(cents) AS cents
FROM orders
GROUP BY city;
