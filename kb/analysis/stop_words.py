"""Function words that say nothing about a topic.

Membership of the lexical ranking is token overlap, so a word that is in nearly every sentence would
make every card a match for every question, and a question the cards cannot answer would never be
refused when only this leg runs. The lists are short on purpose: articles, pronouns, auxiliaries,
prepositions and question words. Negations are kept, since "not" and "stop" change an answer.
"""

from __future__ import annotations

from kb.types import Locale

STOP_WORDS: dict[Locale, frozenset[str]] = {
    "en": frozenset(
        """a an and are as at be been being by can could did do does for from had has have he her
        hers him his how i i'm if in is it it's its me my of on or our she should so some such than
        that the their them then there these they this those to us was we were what when where which
        who whom whose why will with would you your""".split()
    ),
    "es-419": frozenset(
        """a al algo ante aquel aquella como con cual cuando cuándo cuál cómo de del desde donde
        dónde e el él ella ellas ellos en entre era es esa ese eso esta está este esto ha han hay
        he la las le les lo los me mi mis mí o os para pero por porque puedo puede que qué quien
        quién se ser si sí sin sobre son soy su sus te tengo ti tu tus tú u un una unas unos usted y
        ya yo""".split()
    ),
    "pt-BR": frozenset(
        """a ao aos aquela aquele as com como da das de dela dele do dos e ela ele elas eles em
        entre era essa esse esta está este eu foi há isso isto já lhe me meu meus minha minhas
        na nas no nos nós o os ou para pela pelas pelo pelos por porque posso pode qual quando
        que quem se sem ser seu seus sobre sou sua suas são tem tenho te tu um uma umas uns você
        vocês""".split()
    ),
}
