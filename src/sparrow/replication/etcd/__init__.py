"""etcd as the coordinator of replica sets, through its HTTP gateway."""

from sparrow.extras import require

require("httpx", extra="etcd", for_="replica sets with election")
