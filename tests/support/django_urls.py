"""A Django site whose views write a row and enqueue a job, for requests that are transactions."""

from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.urls import path

from supervisor import enqueue


def buy(request: HttpRequest, number: int) -> HttpResponse:
    with connection.cursor() as cursor:
        cursor.execute("insert into business values (%s)", [number])
    enqueue(connection, "mail", {"user_id": number})
    if request.GET.get("fail"):
        raise RuntimeError("after the enqueue")
    return HttpResponse("ok")


urlpatterns = [path("buy/<int:number>", buy)]
