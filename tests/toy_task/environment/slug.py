"""Turn titles into addresses."""


def slug(title):
    return "-".join(title.lower().split(" "))


def unslug(address):
    return " ".join(address.split("-"))
