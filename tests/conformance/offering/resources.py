"""The resources, one template, and subscriptions (which the suite only opens and closes)."""

import json
import re

import mcp_types as types
from mcp.shared.exceptions import MCPError

from .answers import PNG, Context

TEMPLATE = "test://template/{id}/data"
MATCHES_TEMPLATE = re.compile(r"test://template/([^/]+)/data")

Contents = types.TextResourceContents | types.BlobResourceContents


def _text(uri: str, body: str, mime_type: str = "text/plain") -> Contents:
    return types.TextResourceContents(uri=uri, mime_type=mime_type, text=body)


RESOURCES: dict[str, Contents] = {
    contents.uri: contents
    for contents in (
        _text("test://static-text", "This is the content of the static text resource."),
        types.BlobResourceContents(uri="test://static-binary", mime_type="image/png", blob=PNG),
        _text("test://watched-resource", "Watched resource content"),
    )
}


async def list_resources(
    ctx: Context, params: types.PaginatedRequestParams | None
) -> types.ListResourcesResult:
    listed = [
        types.Resource(
            uri=uri,
            name=uri.removeprefix("test://"),
            description=f"The resource {uri}",
            mime_type=contents.mime_type,
        )
        for uri, contents in RESOURCES.items()
    ]
    return types.ListResourcesResult(resources=listed)


async def list_templates(
    ctx: Context, params: types.PaginatedRequestParams | None
) -> types.ListResourceTemplatesResult:
    template = types.ResourceTemplate(
        uri_template=TEMPLATE,
        name="template",
        description="Data for an id",
        mime_type="application/json",
    )
    return types.ListResourceTemplatesResult(resource_templates=[template])


async def read_resource(
    ctx: Context, params: types.ReadResourceRequestParams
) -> types.ReadResourceResult:
    uri = str(params.uri)
    if match := MATCHES_TEMPLATE.fullmatch(uri):
        id_ = match[1]
        data = {"id": id_, "templateTest": True, "data": f"Data for ID: {id_}"}
        found = _text(uri, json.dumps(data), "application/json")
    elif uri in RESOURCES:
        found = RESOURCES[uri]
    else:
        raise MCPError(code=types.INVALID_PARAMS, message="Resource not found", data={"uri": uri})
    return types.ReadResourceResult(contents=[found])


async def subscribe(ctx: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
    return types.EmptyResult()


async def unsubscribe(ctx: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
    return types.EmptyResult()
