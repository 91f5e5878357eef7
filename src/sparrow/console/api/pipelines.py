"""Routes of pipelines: declared ones and those that report, and starting and stopping them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path, Request

from sparrow.console.context import ClusterDependency, ContextDependency
from sparrow.console.masks import HIDDEN, active_masks
from sparrow.console.models.pipelines import PipelineAnswer, PipelineDetailAnswer, PipelineListAnswer
from sparrow.console.pipeline_supervisor import PipelineSupervisor
from sparrow.operations.errors import NotFound
from sparrow.spark.pipelines.folder import PipelineView

router = APIRouter(prefix="/pipelines", tags=["pipelines"])

PipelinePath = Annotated[str, Path(min_length=1, max_length=255, description="Name.", examples=["revenue"])]


def _supervisor(context: ContextDependency, name: str) -> PipelineSupervisor:
    if context.pipelines is None:
        raise NotFound("pipeline", name, "start the console with --pipelines FOLDER")
    return context.pipelines


@router.get("", response_model=PipelineListAnswer)
async def list_pipelines(context: ContextDependency) -> dict[str, Any]:
    """List the pipelines that are declared in the folder of the console, and those that report their state there."""
    if context.pipelines is None:
        return {"folder": None, "pipelines": []}
    found = await context.pipelines.list_all()
    return {"folder": str(context.pipelines.folder), "pipelines": [_mask(view) for view in found]}


@router.get("/{name}", response_model=PipelineDetailAnswer)
async def get_pipeline(name: PipelinePath, context: ContextDependency) -> dict[str, Any]:
    """Return a pipeline with its queries: batch times, rates and offsets."""
    supervisor = _supervisor(context, name)
    view = _mask(await supervisor.get(name))
    shown = {field: getattr(view, field) for field in (*PipelineView.__struct_fields__, "is_active", "can_start")}
    output = await supervisor.read_log(name)
    return shown | {"output": HIDDEN if output and active_masks().hides_anything(None) else output}


@router.post("/{name}/start", response_model=PipelineAnswer)
async def start_pipeline(
    name: PipelinePath, request: Request, context: ContextDependency, cluster: ClusterDependency
) -> PipelineView:
    """Start a declared pipeline, in a process beside the console that ends with it."""
    supervisor = _supervisor(context, name)
    async with cluster.audit.change(request, "pipeline.start", name) as line:
        started = await supervisor.start(name)
        line.after = {"state": started.state}
        return _mask(started)


@router.post("/{name}/stop", response_model=PipelineAnswer)
async def stop_pipeline(
    name: PipelinePath, request: Request, context: ContextDependency, cluster: ClusterDependency
) -> PipelineView:
    """Ask a pipeline to stop between two batches. It may take a while; its state tells."""
    supervisor = _supervisor(context, name)
    async with cluster.audit.change(request, "pipeline.stop", name) as line:
        stopping = await supervisor.stop(name)
        line.after = {"state": stopping.state}
        return _mask(stopping)


def _mask(view: PipelineView) -> PipelineView:
    """Hide the error of a run where anything of messages is hidden: it may quote rows."""
    if view.error is None or view.state == "invalid" or not active_masks().hides_anything(None):
        return view
    return msgspec.structs.replace(view, error=HIDDEN)
