"""A lake of Parquet tables that follows topics: bronze, silver, gold, and a report on them."""
