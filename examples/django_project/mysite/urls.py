"""What the site answers to."""

from __future__ import annotations

from django.urls import path
from shop import views

urlpatterns = [
    path("welcome/<str:name>", views.welcome),
    path("tasks/<str:id>", views.show_task),
]
