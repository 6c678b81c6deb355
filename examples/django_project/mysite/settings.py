"""The settings of a project that has nothing but tasks; see TASKS at the end."""

from __future__ import annotations

from pathlib import Path

import tenure

BASE_DIR = Path(__file__).resolve().parent.parent
SECRET_KEY = "only an example"
DEBUG = True
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "mysite.urls"
USE_TZ = True

INSTALLED_APPS = [
    "tenure.django",  # brings `manage.py tenure_worker`
    "shop",
]

TASKS = {
    "default": {
        "BACKEND": "tenure.django.TenureBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {
            # Where the jobs are: a file, which is made when it is first needed.
            "url": f"sqlite:///{BASE_DIR / 'jobs.db'}",
            # A task that raises is tried up to 3 times, after 10 and 20 seconds.
            "max_attempts": 3,
            "backoff": tenure.exponential(10),
            "timeout": 60,
        },
    }
}
