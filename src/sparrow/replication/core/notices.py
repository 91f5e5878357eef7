"""What a replica tells its operator when it cannot take part."""


def another_set(found_id: str, own_id: str) -> str:
    """Say that the coordinator holds another replica set."""
    return (
        f"the coordinator holds another replica set ({found_id}) under this name than that of this replica ({own_id}): "
        "nothing of it is followed; restore the coordinator"
    )


def went_back(epoch: int, heard_epoch: int) -> str:
    """Say that the coordinator is at an epoch before one that this replica has heard of."""
    return (
        f"the coordinator is at epoch {epoch}, and this replica has heard of epoch {heard_epoch}: its answer is late, "
        "or it was restored from an old copy, whose in-sync set may be wrong; no leader is elected from it"
    )
