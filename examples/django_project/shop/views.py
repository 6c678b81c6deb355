"""Views that enqueue tasks, and show what became of them."""

from __future__ import annotations

from django.http import Http404, HttpRequest, JsonResponse
from django.views.decorators.http import require_POST

from shop.tasks import count_visitors, send_welcome

try:
    from django.tasks import default_task_backend
    from django.tasks.exceptions import TaskResultDoesNotExist
except ModuleNotFoundError:
    from django_tasks import default_task_backend
    from django_tasks.exceptions import TaskResultDoesNotExist


@require_POST
async def welcome(request: HttpRequest, name: str) -> JsonResponse:
    """Answers at once; a worker does the rest. In a plain view: send_welcome.enqueue(name)."""
    mail = await send_welcome.aenqueue(name)
    count = await count_visitors.aenqueue(["home", request.path])
    return JsonResponse({"mail": mail.id, "count": count.id}, status=202)


def show_task(request: HttpRequest, id: str) -> JsonResponse:
    try:
        result = default_task_backend.get_result(id)
    except TaskResultDoesNotExist:
        raise Http404 from None
    answer = {"task": result.task.name, "status": result.status, "attempts": result.attempts}
    if result.status == "SUCCESSFUL":
        answer["result"] = result.return_value
    return JsonResponse(answer)
