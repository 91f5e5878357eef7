"""Replica sets on the page of the cluster: what the page shows of them, and the hand-over of a leadership."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from sparrow.console.pages.frame import formats
from sparrow.console.pages.frame.api_client import ApiProblem, path_of
from sparrow.console.pages.frame.forms import carry_out, read_form
from sparrow.console.pages.frame.view import Flash, Visit
from sparrow.console.pages.routes import PageRoute

router = APIRouter(route_class=PageRoute)


def describe_set(replica_set: dict[str, Any]) -> dict[str, Any]:
    """Return a replica set, with the replicas that may take over the leadership, and those that may be elected."""
    may_change = not replica_set["is_fixed"] and replica_set["leader"] is not None
    replicas = [
        {
            **replica,
            "can_lead": may_change
            and replica["is_in_sync"]
            and replica["role"] != "away"
            and replica["replica_id"] != replica_set["leader"],
        }
        for replica in replica_set["replicas"]
    ]
    able = [each["replica_id"] for each in replicas if each["is_in_sync"] or each["is_eligible"]]
    return {
        **replica_set,
        "replicas": replicas,
        "able": able,
        "can_hand_over": any(replica["can_lead"] for replica in replicas),
    }


@router.get("/cluster/{name}/transfer")
async def show_transfer(request: Request, name: str) -> Response:
    """Show what a hand-over of the leadership does."""
    return await _plan(Visit(request), name, request.query_params.get("to"))


@router.post("/cluster/{name}/transfer")
async def transfer(request: Request, name: str) -> Response:
    """Hand the leadership over as planned."""
    visit, form = await read_form(request)
    done, problem = await carry_out(
        visit, form, "POST", path_of("replica-sets", name, "transfer"), body=_target(form.get("to"))
    )
    if problem is not None:
        return await _plan(visit, name, form.get("to"), problem)
    numbers = {"epoch": formats.exact(done["epoch"]), "time": formats.duration(done["took_ms"])}
    sentence = visit.t("cluster.transfer_done", successor=done["successor"], name=name)
    return visit.redirect("/cluster", Flash("good", sentence, visit.t("cluster.transfer_done_text", **numbers)))


async def _plan(visit: Visit, name: str, to: str | None, problem: ApiProblem | None = None) -> Response:
    plan = await visit.api.request(
        "POST", path_of("replica-sets", name, "transfer"), query={"dry_run": "true"}, body=_target(to)
    )
    t = visit.t
    numbers = {"leader": plan["leader"], "successor": plan["successor"]}
    return visit.render_plan(
        "cluster",
        title=t("cluster.transfer_title", name=name),
        text=t("cluster.transfer_text", **numbers),
        facts=[
            (t("cluster.transfer_leader"), t("cluster.replica_number", n=plan["leader"])),
            (t("cluster.transfer_successor"), t("cluster.replica_number", n=plan["successor"])),
            (t("cluster.transfer_lag"), formats.size(plan["lag_bytes"])),
            (t("cluster.epoch"), formats.exact(plan["epoch"])),
        ],
        action=visit.url(path_of("cluster", name, "transfer")),
        back=visit.url("/cluster"),
        button=t("cluster.transfer_button", **numbers),
        hidden=[("to", to or ""), ("plan", plan["hash"])],
        problem=problem,
    )


def _target(to: str | None) -> dict[str, int]:
    """Return the body of a request; a text that is no number is left to the API's own check of absent ones."""
    return {"to": int(to)} if to and to.isdecimal() and len(to) < 4 else {}
