"""A FastAPI application with the dashboard below a path."""

from __future__ import annotations

import os

from fastapi import FastAPI

import tenure.server

app = FastAPI()
store = tenure.connect(os.environ["SITE_STORE"])
app.mount("/ops/tenure", tenure.server.asgi(store, open_on_loopback=True, environment="mounted"))


@app.get("/")
async def home() -> dict[str, str]:
    return {"site": "ours"}
