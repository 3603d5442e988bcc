"""Whether a question wants its answer in another language."""

import re

_TRANSLATION = re.compile(
    r"translat|übersetz|tradu[ciz]|traduis|vertaal|vertal|tłumacz|przekład|перев[ео]|перекла|превед|översätt|oversæt|oversett|kään|fordít"
    r"|přelož|prelož|prevedi|prevesti|çevir|tulkot|versk|tõlgi|dịch|翻译|翻譯|翻訳|訳し|번역|अनुवाद|ترجم|תרגם|μετάφρα|μεταφρά|แปล",
    re.IGNORECASE,
)

_LANGUAGE_NAMES = re.compile(
    r"\b(?:english|englis|anglais|ingl[eéê]s|inglese|engels|angiel|англий|англій|german|deutsch|allemand|alem[aáã]n|tedesc|duits|niemieck"
    r"|немец|німец|french|französ|français|francés|francese|francês|frans|francus|француз|spanish|spanisch|espagnol|español|spagnol|espanhol"
    r"|spaans|hiszpań|испан|іспан|italian|italienisch|italien|włosk|итальян|portugu|portoghese|portugal|dutch|niederländ|néerland|neerland"
    r"|oland|nederland|polish|polnisch|polonais|polaco|polacc|polsk|russian|russisch|russe|ruso|russo|rosyjsk|русск|російськ|ukrain|украин"
    r"|україн|chinese|chinesisch|chinois|chin[oê]s|cinese|japanese|japanisch|japonais|japon[eé]s|giappon|korean|koreanisch|arabic|arabisch|arabe"
    r"|turkish|türkisch|turc|turco|swedish|schwedisch|suédois|sueco|svenska|danish|dänisch|danois|norwegian|norwegisch|finnish|finnisch"
    r"|greek|griechisch|grec|griego|hindi|hebrew|hebräisch|hungarian|ungarisch|czech|tschechisch|romanian|rumänisch)",
    re.IGNORECASE,
)


def names_language(text: str) -> bool:
    """
    Whether a text asks for a translation or names a language: then its answer may well be meant to be in another one.
    """
    return bool(_TRANSLATION.search(text) or _LANGUAGE_NAMES.search(text))
