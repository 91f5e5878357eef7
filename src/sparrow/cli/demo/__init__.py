"""`sparrow demo`: a platform with a live producer, consumers and a Spark pipeline."""
