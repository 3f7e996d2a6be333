"""Short real sentences in many languages, and the encodings from before UTF-8 that people have them in."""

from __future__ import annotations

__all__ = ["TEXTS"]

TEXTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "danish": (
        "Rødgrød med fløde på bordet.\n"
        "Børnene går i skole ved åen, og om sommeren bader de i søen.\n"
        "Æblerne er røde, når det bliver efterår.",
        ("cp1252", "latin-1", "iso8859-15", "mac-roman", "cp850",),
    ),
    "swedish": (
        "Får får får? Nej, får får lamm.\n"
        "På sommaren åker vi till skärgården och badar på ön.\n"
        "Det är många bär i skogen när hösten börjar.",
        ("cp1252", "latin-1", "iso8859-15", "mac-roman", "cp850",),
    ),
    "norwegian": (
        "Vi må kjøpe brød og ost på vei hjem.\n"
        "Han så på fjellet da snøen begynte å falle.\n"
        "Året etter var det også mye regn på vestlandet.",
        ("cp1252", "latin-1", "iso8859-15", "mac-roman",),
    ),
    "french": (
        "Le garçon a mangé à la crêperie.\n"
        "L'été dernier, mon frère est allé à la forêt près de chez nous.\n"
        "Il a été très déçu par le théâtre où jouait sa sœur.",
        ("cp1252", "iso8859-15", "mac-roman", "cp850",),
    ),
    "french, one letter": (
        "Mon père et ma mère.\n"
        "La lumière de la rivière derrière la barrière.\n"
        "Une bière légère.",
        ("cp1252", "latin-1",),
    ),
    "german": (
        "Die Bäume blühen im Frühling.\n"
        "Grüße aus der schönen Straße in München, wo wir übernachten können.\n"
        "Über den Dächern weht ein kühler Wind.",
        ("cp1252", "latin-1", "iso8859-15", "mac-roman", "cp850",),
    ),
    "spanish": (
        "El niño comió una piña mañana.\n"
        "¿Dónde está la montaña más alta de España?\n"
        "El otoño es la estación más bonita del año según mi tía.",
        ("cp1252", "latin-1", "mac-roman", "cp850",),
    ),
    "portuguese": (
        "Não há pão na padaria da estação.\n"
        "A educação das crianças é uma questão de atenção.\n"
        "O coração não sente o que os olhos não veem.",
        ("cp1252", "latin-1", "mac-roman", "cp850",),
    ),
    "italian": (
        "La città è più bella la domenica.\n"
        "Perché non c'è nessuno? È così, però la libertà è già qui.\n"
        "La verità non è mai stata così.",
        ("cp1252", "latin-1", "mac-roman", "cp850",),
    ),
    "italian, one letter": (
        "Il caffè è caldo.\n"
        "Oggi è venerdì e il tè è pronto.\n"
        "Chi c'è alla porta?",
        ("cp1252", "latin-1",),
    ),
    "dutch": (
        "De coördinatie van de financiën.\n"
        "België en Italië zijn geïnteresseerd in één reünie.\n"
        "De zeeën zijn geërgerd.",
        ("cp1252", "latin-1", "mac-roman",),
    ),
    "finnish": (
        "Hyvää päivää kaikille ystäville.\n"
        "Tämä on hyvä esimerkki siitä, että sää on täällä kylmää.\n"
        "Äiti söi leipää eikä lähtenyt pois.",
        ("cp1252", "latin-1", "mac-roman", "cp850",),
    ),
    "icelandic": (
        "Það er gott veður á Íslandi í dag.\n"
        "Hún fór út í búð að kaupa mjólk og brauð þegar þeir komu.\n"
        "Ég veit ekki hvað þú ætlar að gera.",
        ("cp1252", "latin-1",),
    ),
    "catalan": (
        "Avui és el cinquè dia de l'any.\n"
        "La nostra relació amb això és més àmplia que abans.\n"
        "Però què passa a Barcelona, la ciutat més gran?",
        ("cp1252", "latin-1",),
    ),
    "english": (
        "A café on the corner – it’s “nice”.\n"
        "The naïve résumé cost £20 or €25.\n"
        "It was 30° in the shade.",
        ("cp1252",),
    ),
    "estonian": (
        "Öö on täna väga külm ja pime.\n"
        "Õpilased sõidavad kooli bussiga, sest tee on pikk.\n"
        "Üks väike poiss läks õhtul jõe äärde.",
        ("cp1252", "latin-1",),
    ),
    "polish": (
        "Zażółć gęślą jaźń.\n"
        "Wczoraj wieczorem poszłam na długi spacer, żeby odpocząć.\n"
        "Dzieci są już w szkole i uczą się czytać.",
        ("cp1250", "iso8859-2",),
    ),
    "czech": (
        "Příliš žluťoučký kůň úpěl.\n"
        "Dnes ráno jsem šel do práce pěšky, protože bylo hezky.\n"
        "Náš dům stojí u řeky blízko města.",
        ("cp1250", "iso8859-2",),
    ),
    "slovak": (
        "Môj otec kúpil v meste chlieb.\n"
        "Každý deň chodíme do školy pešo, lebo býva pekne.\n"
        "Ľudia sú veľmi šťastní, keď svieti slnko.",
        ("cp1250", "iso8859-2",),
    ),
    "hungarian": (
        "Árvíztűrő tükörfúrógép.\n"
        "A gyerekek délután a kertben játszanak, mert jó idő van.\n"
        "Hol van a legközelebbi étterem, ahol főznek?",
        ("cp1250", "iso8859-2",),
    ),
    "croatian": (
        "Čekam te već dugo u kući.\n"
        "Sljedeći tjedan idemo na more s našim prijateljima.\n"
        "Djeca žele čokoladu i kišu, a može i još nešto.",
        ("cp1250", "iso8859-2",),
    ),
    "romanian": (
        "Ţara noastră are munţi şi păduri.\n"
        "Astăzi este o zi frumoasă şi copiii se joacă în curte.\n"
        "Fata mănâncă o pâine caldă.",
        ("cp1250", "iso8859-2",),
    ),
    "russian": (
        "Привет, как дела?\n"
        "Сегодня утром я пошёл на работу пешком, потому что была хорошая погода.\n"
        "Дети играют во дворе школы.",
        ("cp1251", "koi8-r", "cp866", "iso8859-5",),
    ),
    "ukrainian": (
        "Привіт, як справи?\n"
        "Сьогодні вранці я пішов на роботу пішки, бо була гарна погода.\n"
        "Діти грають у дворі школи.",
        ("cp1251", "koi8-u",),
    ),
    "bulgarian": (
        "Здравей, как си днес?\n"
        "Децата играят в двора на училището, защото времето е хубаво.\n"
        "Утре ще отидем на пазар.",
        ("cp1251",),
    ),
    "greek": (
        "Καλημέρα, τι κάνεις;\n"
        "Σήμερα το πρωί πήγα στη δουλειά με τα πόδια γιατί ο καιρός ήταν καλός.\n"
        "Τα παιδιά παίζουν στην αυλή.",
        ("cp1253", "iso8859-7",),
    ),
    "turkish": (
        "Çocuklar bahçede oynuyor.\n"
        "Bugün hava çok güzel olduğu için işe yürüyerek gittim.\n"
        "Şehir ışıkları gece ağaçların arasında.",
        ("cp1254", "iso8859-9",),
    ),
    "hebrew": (
        "שלום, מה שלומך היום?\n"
        "הילדים משחקים בחצר של בית הספר כי מזג האוויר יפה.\n"
        "אני הולך לעבודה ברגל.",
        ("cp1255", "iso8859-8",),
    ),
    "arabic": (
        "مرحبا، كيف حالك اليوم؟\n"
        "ذهبت إلى العمل سيرا على الأقدام لأن الطقس كان جميلا.\n"
        "الأطفال يلعبون في ساحة المدرسة.",
        ("cp1256", "iso8859-6",),
    ),
    "thai": (
        "สวัสดีครับ วันนี้อากาศดีมาก\n"
        "เด็กๆ เล่นอยู่ในสนามของโรงเรียน\n"
        "ฉันเดินไปทำงานตอนเช้า",
        ("cp874",),
    ),
    "lithuanian": (
        "Labas rytas, kaip jūs gyvenate?\n"
        "Šiandien aš ėjau į darbą pėsčiomis, nes buvo gražus oras.\n"
        "Vaikai žaidžia mokyklos kieme.",
        ("cp1257",),
    ),
    "japanese": (
        "こんにちは、お元気ですか。\n"
        "今日は天気がよかったので、歩いて会社に行きました。\n"
        "子供たちは学校の庭で遊んでいます。",
        ("cp932", "euc-jp",),
    ),
    "chinese": (
        "你好，今天天气很好。\n"
        "因为天气不错，所以我早上走路去上班。\n"
        "孩子们在学校的院子里玩。",
        ("gb18030",),
    ),
    "taiwanese": (
        "你好，今天天氣很好。\n"
        "因為天氣不錯，所以我早上走路去上班。\n"
        "孩子們在學校的院子裡玩。",
        ("big5",),
    ),
    "korean": (
        "안녕하세요, 오늘 날씨가 좋네요.\n"
        "날씨가 좋아서 아침에 걸어서 회사에 갔습니다.\n"
        "아이들이 학교 마당에서 놀고 있어요.",
        ("euc-kr",),
    ),
}  # fmt: skip
"""Language: three lines, and the encodings that hold them."""
