# ruff: noqa: E501 -- rows of tables
"""Files as other programs write them: databases, spreadsheets, pandas, search engines, message queues.

Each function writes what its program really writes, with that program's own library where it has one (DuckDB, pandas,
fastavro), else byte for byte. None knows how `scannery spec init` guesses.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
from decimal import Decimal
from pathlib import Path

import duckdb
import fastavro
import pandas as pd

__all__ = ["WRITERS"]

PRODUCTS = [
    ("Cast iron skillet", "A heavy pan that holds its heat. Sear steaks in it, bake cornbread, and never wash it with "
     "soap: wipe it with salt and oil instead.", "39.90", "kitchen", True, "2021-03-02 08:15:00", None),
    ("Folding bicycle", "Fits under the desk of an office and into the boot of a small car. Three gears, mudguards and a "
     "dynamo lamp for commuting through the city in the rain.", "749.00", "mobility", True, "2022-05-17 12:00:00", None),
    ("Beekeeper's veil", "Keeps the stings away from face and neck while you inspect the hives and lift the frames with "
     "honey.", "24.50", "garden", False, "2019-11-23 17:41:09", "2023-01-31"),
    ("Head torch", "Lights the path for eight hours. Its red mode keeps your eyes used to the dark when you look for "
     "stars or tie a boat at night.", "31.00", "outdoor", True, "2023-08-01 06:30:00", None),
    ("Espresso machine", "Nine bars of pressure, a steam wand for milk and a grinder with flat burrs. Descale it every "
     "two months, or the water will run slow.", "1299.00", "kitchen", True, "2020-02-29 23:59:59", None),
    ("Rain barrel", "Collects two hundred litres from the gutter, so that tomatoes and roses survive a dry July.",
     "89.95", "garden", True, "2021-06-11 10:00:00", "2024-09-30"),
    ("Violin strings", "A set of four with a synthetic core: warm, quick to answer under the bow, and stable in tune "
     "after a day.", "58.20", "music", True, "2018-09-09 09:09:09", None),
    ("Avalanche beacon", "Sends and receives on 457 kHz. Practise with it before you ski off the marked slopes: a buried "
     "friend has fifteen minutes.", "279.00", "outdoor", True, "2022-12-01 07:00:00", None),
]  # fmt: skip


def duckdb_parquet(folder: Path) -> None:
    """Write a table of a shop's database: decimals, dates, nulls, a list and a struct, by DuckDB's COPY."""
    with duckdb.connect() as database:
        database.execute(
            "CREATE TABLE products (product_id BIGINT, name VARCHAR, description VARCHAR, price DECIMAL(10,2), "
            "category VARCHAR, in_stock BOOLEAN, created_at TIMESTAMP, discontinued_on DATE, tags VARCHAR[], "
            "stock STRUCT(warehouse VARCHAR, pieces INTEGER), weight_kg DOUBLE)"
        )
        for number, (name, text, price, kind, stocked, created, gone) in enumerate(PRODUCTS):
            database.execute(
                "INSERT INTO products VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    4700 + number, name, text, Decimal(price), kind, stocked, created, gone,
                    [kind, "sale"] if number % 3 == 0 else None,
                    {"warehouse": "Lyon" if number % 2 else "Gent", "pieces": 3 * number},
                    None if number == 2 else 0.25 * number + 0.1,
                ],
            )  # fmt: skip
        database.execute(f"COPY products TO '{folder / 'products.parquet'}' (FORMAT parquet)")


def postgres_csv(folder: Path) -> None:
    """Write the same table as `COPY products TO STDOUT (FORMAT csv, HEADER)` of PostgreSQL: t and f, bare nulls, +00."""
    lines = ["product_id,name,description,price,category,in_stock,created_at,discontinued_on,tags"]
    for number, (name, text, price, kind, stocked, created, gone) in enumerate(PRODUCTS):
        cells = [str(4700 + number), _quoted(name), _quoted(text), price, kind, "t" if stocked else "f",
                 f"{created}+00", gone or "", f'"{{{kind},sale}}"' if number % 3 == 0 else ""]  # fmt: skip
        lines.append(",".join(cells))
    (folder / "products.csv").write_text("\n".join(lines) + "\n")


def german_spreadsheet(folder: Path) -> None:
    """Write recipes as Excel in Germany saves CSV: semicolons, Windows-1252, CRLF, decimal commas, Ja and Nein."""
    rows = [
        ["Nr.", "Rezept", "Zubereitung", "Dauer (min)", "Preis (€)", "Vegetarisch", "Zuletzt gekocht", "Küche"],
        ["1", "Käsespätzle", "Spätzle in kochendes Wasser schaben, mit Bergkäse und gerösteten Zwiebeln schichten und im "
         "Ofen überbacken.\nDazu passt grüner Salat.", "45", "6,50", "Ja", "24.12.2023", "schwäbisch"],
        ["2", "Fischsuppe", "Zwiebeln und Fenchel anschwitzen, mit Weißwein ablöschen, Fischfond angießen; Kabeljau und "
         "Muscheln erst zum Schluss hineingeben.", "60", "14,90", "Nein", "03.02.2024", "französisch"],
        ["3", "Linsendal", "Rote Linsen mit Kurkuma, Ingwer und Kokosmilch weich kochen und mit Koriander bestreuen.",
         "30", "3,75", "Ja", "18.03.2024", "indisch"],
        ["4", "Apfelstrudel", "Den Teig hauchdünn ausziehen, mit Äpfeln, Rosinen und Zimt füllen, einrollen und "
         "goldbraun backen. Warm mit Vanillesoße servieren.", "90", "5,20", "Ja", "01.11.2023", "österreichisch"],
        ["5", "Rouladen", "Rindfleisch mit Senf bestreichen, Speck und Gurke einrollen, scharf anbraten und zwei Stunden "
         "schmoren.", "150", "19,00", "Nein", "", "deutsch"],
        ["6", "Gazpacho", "Tomaten, Gurke und Paprika mit altem Brot und Olivenöl pürieren; eiskalt servieren, wenn der "
         "Sommer am heißesten ist.", "20", "4,10", "Ja", "15.07.2023", "spanisch"],
    ]  # fmt: skip
    _csv(folder / "Rezepte.csv", rows, "cp1252", delimiter=";", lineterminator="\r\n")


def pandas_csv(folder: Path) -> None:
    """Write hotel reviews by pandas' to_csv: its index as a nameless column, 7.0 beside NaN, True, lists as Python."""
    reviews = [
        ("Seaview Lodge", "The balcony looks over the harbour, and gulls woke us at five. Breakfast was fresh fish.",
         9),
        ("Station Hotel", "Trains rattle past the window all night. Bring ear plugs, or do not come.", 3),
        ("Alpine Hut", "Bunk beds, no shower, but the sunrise over the glacier pays for every blister of the climb.",
         8),
        ("Grand Palace", "Marble, chandeliers, and a bill to match. The pianist in the bar plays Gershwin.", 7),
        ("Casa Verde", "A garden with hammocks and a cook who explains each chilli before you burn your tongue.", 10),
        ("Airport Inn", "Clean, cheap, and the shuttle leaves every ten minutes. Nothing to remember.", None),
    ]  # fmt: skip
    frame = pd.DataFrame(
        {
            "review_id": [f"r-{number}" for number in range(len(reviews))],
            "hotel": [name for name, _, _ in reviews],
            "review_text": [text for _, text, _ in reviews],
            "rating": [stars for _, _, stars in reviews],
            "verified": [True, True, False, True, True, False],
            "stay": pd.to_datetime(
                ["2024-01-05", "2024-02-11", None, "2024-03-30", "2024-04-02", "2024-05-05"]
            ),
            "topics": [["noise", "food"], ["noise"], ["view"], ["price", "music"], ["food"], []],
        }
    )
    frame.to_csv(folder / "reviews.csv")


def elastic_dump(folder: Path) -> None:
    """Write news as elasticdump does: one document per line below `_source`, with nested authors."""
    articles = [
        ("Tunnel under the strait opens", "After nine years of digging, trains now cross below the sea in twelve minutes, "
         "and the old ferries are for sale.", "Ines Duarte", ["transport", "engineering"], 1820),
        ("A vaccine against malaria reaches villages", "Nurses carry it in cool boxes on motorbikes. In the first season, "
         "half as many children fell ill.", "Kofi Mensah", ["health"], 5120),
        ("Wolves are back in the valley", "Shepherds buy dogs and fences, and argue with hunters at every meeting of the "
         "council.", "Anna Roth", ["nature", "farming"], 944),
        ("The orchestra that plays in the dark", "Musicians who lost their sight memorise whole symphonies; the audience "
         "sits without light, too.", "Ines Duarte", ["culture"], 377),
        ("Interest rates rise once more", "The central bank fears that wages will push prices, and lenders expect two more "
         "steps before winter.", "Kofi Mensah", ["economy"], 2301),
    ]  # fmt: skip
    with (folder / "articles.json").open("w") as file:
        for number, (title, body, author, tags, views) in enumerate(articles):
            source = {
                "title": title, "body": body, "author": {"name": author, "email": f"desk{number}@news.example"},
                "tags": tags, "stats": {"views": views, "shares": None if number == 3 else views // 7},
                "published_at": f"2024-0{number + 1}-15T06:00:00.000Z", "lang": "en",
            }  # fmt: skip
            document = {"_index": "articles", "_id": f"kX{number}9-4wBz", "_score": 1, "_source": source}
            file.write(json.dumps(document, separators=(",", ":")) + "\n")


def rest_array(folder: Path) -> None:
    """Write the posts of a blog as its REST interface answers: one indented array, texts below `rendered`."""
    posts = [
        (118, "Sharpening chisels", "<p>Start on the coarse stone and keep the bevel flat. A burr on the back tells you "
         "that the edge is done.</p>\n"),
        (121, "Why bread needs a night", "<p>Cold dough ferments slowly, and the crust tastes of hazelnuts. Ten minutes of "
         "work, twelve hours of sleep.</p>\n"),
        (127, "Sailing without an engine", "<p>Leave on the ebb, come home on the flood, and anchor when the wind dies. "
         "You will learn patience, or swearing.</p>\n"),
        (133, "Mending a stone wall", "<p>One stone over two, two over one. Frost moves what mortar would only crack."
         "</p>\n"),
    ]  # fmt: skip
    items = [
        {
            "id": number, "date": f"2023-1{place % 3}-0{place + 1}T19:22:05", "slug": title.lower().replace(" ", "-"),
            "status": "publish", "link": f"https://blog.example/{number}", "title": {"rendered": title},
            "content": {"rendered": text, "protected": False}, "author": 1, "categories": [4, 9], "sticky": False,
            "meta": {"footnotes": ""},
        }
        for place, (number, title, text) in enumerate(posts)
    ]  # fmt: skip
    (folder / "posts.json").write_text(json.dumps(items, indent=4))


def avro_events(folder: Path) -> None:
    """Write support tickets as a message queue's sink does: unions with null, logical types, an enumeration."""
    nullable = ["null", "string"]
    schema = fastavro.parse_schema(
        {
            "type": "record", "name": "Ticket", "namespace": "support",
            "fields": [
                {"name": "ticket_uuid", "type": {"type": "string", "logicalType": "uuid"}},
                {"name": "subject", "type": nullable, "default": None},
                {"name": "message", "type": "string"},
                {"name": "opened", "type": {"type": "long", "logicalType": "timestamp-millis"}},
                {"name": "due", "type": ["null", {"type": "int", "logicalType": "date"}], "default": None},
                {"name": "refund", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}]},
                {"name": "priority", "type": {"type": "enum", "name": "Priority", "symbols": ["LOW", "NORMAL", "HIGH"]}},
                {"name": "customer", "type": {"type": "record", "name": "Customer", "fields": [
                    {"name": "country", "type": "string"}, {"name": "orders", "type": "int"}]}},
                {"name": "labels", "type": {"type": "array", "items": "string"}},
            ],
        }
    )  # fmt: skip
    import uuid

    messages = [
        ("Parcel never came", "The tracking page has said out for delivery for nine days, and the courier does not pick "
         "up the phone.", "49.90", "HIGH", "FR"),
        (None, "I cannot log in since I changed my password; the reset mail does not arrive, not even as spam.", None,
         "NORMAL", "DE"),
        ("Wrong size", "I ordered the boots in 42 and got 44. Can I swap them in your shop in Antwerp?", "0.00", "LOW", "BE"),
        ("Invoice without VAT number", "Our accountant needs the tax number of the company on the bill from March.", None,
         "LOW", "DE"),
        ("Smoke from the charger", "It hissed, smelled of burnt plastic and then the fuse blew. I unplugged it at once.",
         "19.95", "HIGH", "IT"),
    ]  # fmt: skip
    start = dt.datetime(2024, 6, 1, 9, tzinfo=dt.timezone.utc)
    records = [
        {
            "ticket_uuid": str(uuid.UUID(int=0x1234567890ABCDEF1234567890ABCDEF + number)), "subject": subject,
            "message": text, "opened": start + dt.timedelta(hours=7 * number),
            "due": None if number % 2 else dt.date(2024, 6, 3 + number),
            "refund": None if refund is None else Decimal(refund), "priority": priority,
            "customer": {"country": country, "orders": number}, "labels": ["shop"] * (number % 3),
        }
        for number, (subject, text, refund, priority, country) in enumerate(messages)
    ]  # fmt: skip
    with (folder / "tickets.avro").open("wb") as file:
        fastavro.writer(file, schema, records, codec="deflate")


def mysql_tsv(folder: Path) -> None:
    r"""Write forum posts as `mysql --batch` prints them: tabs, `\n` for newlines, NULL, and epoch milliseconds."""
    posts = [
        (90001, 12, "Squeaking brakes", r"New pads, and still they scream.\nDid you clean the rim with alcohol first?", 17),
        (90002, 40, "Tubeless at home", r"Sealant everywhere but in the tyre. A track pump is not enough: borrow a "
         r"compressor.", None),
        (90003, 12, "Night ride on Friday", r"We meet at the bridge at ten. Lights are a must, lycra is not.", 5),
        (90004, 77, "Saddle hurts after an hour", r"Measure the width of your sit bones, and tilt the nose down a degree.",
         41),
        (90005, 40, "Chain skips on small cogs", r"Worn cassette. Replace it with the chain, or the new chain will wear as "
         r"fast.", 8),
    ]  # fmt: skip
    lines = ["post_id\tuser_id\tsubject\tbody\tlikes\tcreated_ms"]
    lines += [
        f"{post}\t{user}\t{subject}\t{body}\t{'NULL' if likes is None else likes}\t{1709424000000 + 86_400_123 * place}"
        for place, (post, user, subject, body, likes) in enumerate(posts)
    ]
    (folder / "posts.tsv").write_text("\n".join(lines) + "\n")


def excel_unicode_text(folder: Path) -> None:
    """Write a museum's list as Excel saves "Unicode Text": UTF-16 with a byte order mark, tabs, the ending .txt."""
    rows = [
        ["Inventory No.", "Object", "Description", "Year", "On loan", "Insured value"],
        ["A-17", "Astrolabe", 'Brass disc with which sailors measured the height of the sun; "Lisboa" is engraved on the rim.',
         "1602", "FALSE", "84,000"],
        ["A-18", "Crêpe pan", "Copper, tinned, with a long iron handle; from the kitchen of a château near Tours.", "1790",
         "TRUE", "1,250"],
        ["B-02", "Samurai helmet", "Lacquered iron plates and a crest shaped like a crescent moon (兜).", "1688", "FALSE",
         "132,500"],
        ["B-40", "Loom weight", "Fired clay with a hole: it kept the threads of a loom taut in a Greek house.", "-420",
         "FALSE", "300"],
        ["C-09", "Tide clock", "Shows high water at the port of Gdańsk beside the hour and the moon.", "1641", "TRUE",
         "56,900"],
    ]  # fmt: skip
    _csv(folder / "objects.txt", rows, "utf-16", delimiter="\t", lineterminator="\r\n")


def markdown_folder(folder: Path) -> None:
    """Write a handbook as people keep it in a repository: headings, front matter, tables, code."""
    (folder / "handbook" / "ops").mkdir(parents=True)
    (folder / "handbook" / "coffee.md").write_text(
        "---\ntitle: The coffee corner\nowner: anna\n---\n\n# The coffee corner\n\nWho empties the pot makes the next one."
        "\n\n## Espresso\n\nGrind 18 grams and stop after 27 seconds.\n\n| bean | roast | grams |\n| --- | --- | ---: |\n"
        "| Yirgacheffe | light | 19 |\n| Santos | dark | 17 |\n\n## Cleaning\n\nRun the back-flush every Friday evening.\n"
    )
    (folder / "handbook" / "ops" / "on-call.md").write_text(
        "# On call\n\n## Being paged\n\nAcknowledge within five minutes, then open the run book of the service.\n\n"
        "## Hand-over\n\nWrite down what is still burning. The next person reads it at nine.\n\n"
        "| severity | answer within | who is told |\n| --- | --- | --- |\n| 1 | 5 minutes | everybody |\n"
        "| 2 | 1 hour | the team |\n| 3 | next day | nobody |\n"
    )
    (folder / "handbook" / "holidays.md").write_text(
        "# Holidays\n\nThirty days, and your birthday. Ask two weeks ahead.\n\n```python\nremaining = 30 - taken\n```\n"
    )


def podcast_feed(folder: Path) -> None:
    """Write a podcast's feed as its host does: RSS with iTunes and Podcasting 2.0 tags, transcripts as files beside it."""
    (folder / "transcripts").mkdir()
    episodes = [
        ("Keeping goats on a roof", "Two neighbours, four goats, and a lease that forbids dogs.",
         "WEBVTT\n\n00:00:01.000 --> 00:00:05.000\n<v Maren>Welcome back. Today we climb onto a roof in Lisbon.\n\n"
         "00:00:05.500 --> 00:00:11.000\n<v Tomas>The goats eat the weeds, and the milk becomes cheese on Sundays.\n"),
        ("The ferry that never left", "A ship, a strike and three hundred passengers.",
         "WEBVTT\n\n00:00:00.500 --> 00:00:06.000\n<v Maren>For eleven days the crew refused to sail.\n\n"
         "00:00:06.000 --> 00:00:12.000\n<v Ada>People slept on the car deck and played cards for matches.\n"),
        ("Glass from the beach", "How sand, soda and a hot oven become a window.", None),
    ]  # fmt: skip
    items = []
    for number, (title, about, transcript) in enumerate(episodes, 1):
        link = (
            f'      <podcast:transcript url="transcripts/{number}.vtt" type="text/vtt"/>\n'
            if transcript
            else ""
        )
        items.append(
            f'    <item>\n      <title>{title}</title>\n      <guid isPermaLink="false">odd-jobs-{number}</guid>\n'
            f"      <link>https://oddjobs.example/{number}</link>\n"
            f"      <pubDate>Tue, 0{number} Oct 2024 06:00:00 +0000</pubDate>\n"
            f"      <description><![CDATA[<p>{about}</p>]]></description>\n      <itunes:duration>00:2{number}:00</itunes:duration>\n"
            f"      <itunes:episode>{number}</itunes:episode>\n{link}"
            f'      <enclosure url="https://oddjobs.example/{number}.mp3" length="2300{number}" type="audio/mpeg"/>\n    </item>\n'
        )
        if transcript:
            (folder / "transcripts" / f"{number}.vtt").write_text(transcript)
    (folder / "feed.xml").write_text(
        '<?xml version="1.0" encoding="UTF-8"?>\n<rss version="2.0" xmlns:itunes="http://www.itunes.com/dtds/podcast-1.0.dtd" '
        'xmlns:podcast="https://podcastindex.org/namespace/1.0">\n  <channel>\n    <title>Odd Jobs</title>\n'
        "    <link>https://oddjobs.example</link>\n    <description>People and what they do.</description>\n"
        f"    <language>en</language>\n{''.join(items)}  </channel>\n</rss>\n"
    )


def office_folder(folder: Path) -> None:
    """Write a shared folder: a report as PDF (by matplotlib's writer), and pages that a browser saved as HTML."""
    import matplotlib as mpl
    from matplotlib.backends.backend_pdf import PdfPages
    from matplotlib.figure import Figure

    pages = [
        ["Annual report of the allotment society", "", "The well was drilled in March to a depth of forty metres.",
         "It now waters all plots, also in August."],
        ["Accounts", "", "The harvest festival brought in 1,240 euros, and the new shed cost 3,100.",
         "Members voted to raise the fee by two euros a month."],
    ]  # fmt: skip
    (folder / "reports").mkdir()
    with mpl.rc_context({"pdf.fonttype": 42}), PdfPages(folder / "reports" / "2023.pdf") as pdf:
        for lines in pages:
            page = Figure(figsize=(8.3, 11.7))
            for place, line in enumerate(lines):
                page.text(0.1, 0.9 - 0.03 * place, line)
            pdf.savefig(page)
    for name, title, text in [
        ("rules.html", "House rules", "Bonfires are allowed on Saturdays in October only. Hedges may be as high as a tall man."),
        ("bees.htm", "Bees on plot nine", "The hives face south. Please do not mow in front of them while the lime trees bloom."),
    ]:  # fmt: skip
        (folder / name).write_text(
            f'<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{title}</title>\n'
            "<style>nav { color: red }</style><script>var x = '<p>no text</p>';</script></head>\n<body>\n"
            '<nav><a href="/">Home</a> <a href="/plots">Plots</a></nav>\n'
            f"<main><h1>{title}</h1>\n<p>{text}</p>\n<table><tr><th>plot</th><th>size</th></tr><tr><td>9</td><td>200 m²</td></tr>"
            "</table></main>\n<footer>© the society</footer></body></html>\n"
        )


WRITERS = {
    writer.__name__: writer
    for writer in (
        duckdb_parquet, postgres_csv, german_spreadsheet, pandas_csv, elastic_dump, rest_array, avro_events, mysql_tsv,
        excel_unicode_text, markdown_folder, podcast_feed, office_folder,
    )
}  # fmt: skip


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\n') else text


def _csv(path: Path, rows: list[list[str]], encoding: str, **dialect: str) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_MINIMAL, **dialect).writerows(rows)  # type: ignore[arg-type]
    path.write_bytes(text.getvalue().encode(encoding))
