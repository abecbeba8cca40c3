//! Answers that were written beforehand, for texts that nothing is generated for.
//!
//! A small model may praise a thought of suicide or carry a threat on, and moderation of its output cannot be relied
//! on to notice.

use super::{Category, Language, Prism, Scores};

/// The answers to one kind of text in one language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// The reply: one sentence.
    pub reply: &'static str,
    /// The positive expression.
    pub positive: &'static str,
    /// The negative expression.
    pub negative: &'static str,
}

impl Fixed {
    /// Both expressions.
    pub fn prism(self) -> Prism {
        Prism::Expressed { positive: self.positive.into(), negative: self.negative.into() }
    }
}

/// The self-harm score from which a text is taken for distress. Below the operating point of moderation, because
/// a caring answer to a harmless text costs less than a cheerful one to a person in danger.
const CARE_THRESHOLD: f64 = 0.3;

/// The same of an English text. Of 89 messages of people in danger that are kept aside, alpha-4o-mini gives 51 a score of 0.3 or
/// more and 54 one of 0.2; of 1,543 everyday texts 2 either way. In other languages 0.2 finds no more.
const CARE_THRESHOLD_OF_ENGLISH: f64 = 0.2;

/// The score of any category but self-harm from which nothing is generated. Above the operating point of
/// moderation: a text that is flagged by mistake is better expressed than called harsh.
pub const SOBER_THRESHOLD: f64 = 0.8;

/// Whether a text of this language with these scores is taken for distress.
pub fn is_distress(scores: Scores, language: Language) -> bool {
    let least = if language == Language::English { CARE_THRESHOLD_OF_ENGLISH } else { CARE_THRESHOLD };
    scores.get(Category::SelfHarm) >= least
}

/// What a text with these scores is answered, in its language, instead of being generated for; none for most texts.
pub fn due(scores: Scores, language: Language) -> Option<Fixed> {
    if is_distress(scores, language) {
        return Some(care(language));
    }
    let harmful = Category::ALL.into_iter().any(|category| scores.get(category) >= SOBER_THRESHOLD);
    harmful.then(|| sober(language))
}

/// For a person in distress: hope without cheer in the positive, no encouragement in the negative, and a reply that
/// points to people who can help.
pub fn care(language: Language) -> Fixed {
    match language {
        Language::English => Fixed {
            reply: "What you are carrying sounds very heavy, and you do not have to carry it alone: please tell someone you trust today, or call your local crisis line.",
            positive: "This is a very hard moment, and saying so is a first step towards help.",
            negative: "This is a very hard moment, too heavy to be left alone with.",
        },
        Language::Japanese => Fixed {
            reply: "とても重いものを抱えているのですね、ひとりで背負わずに、今日のうちに信頼できる人に話すか、お近くの相談窓口に電話してください。",
            positive: "今はとてもつらいときですが、それを言葉にしたことが助けへの第一歩です。",
            negative: "今はとてもつらく、ひとりで抱えるには重すぎるときです。",
        },
        Language::Korean => Fixed {
            reply: "지금 아주 무거운 짐을 지고 계신 것 같아요, 혼자 감당하지 마시고 오늘 믿을 수 있는 사람에게 털어놓거나 가까운 위기 상담 전화에 연락해 주세요.",
            positive: "지금은 몹시 힘든 순간이지만, 그 마음을 말로 꺼낸 것이 도움으로 가는 첫걸음이에요.",
            negative: "지금은 몹시 힘든 순간이고, 혼자 감당하기에는 너무 무거워요.",
        },
        Language::Spanish => Fixed {
            reply: "Lo que llevas dentro parece muy pesado y no tienes que llevarlo en soledad: cuéntaselo hoy a alguien de confianza o llama a una línea de ayuda de tu zona.",
            positive: "Es un momento muy duro, y decirlo es un primer paso hacia la ayuda.",
            negative: "Es un momento muy duro, demasiado pesado para llevarlo en soledad.",
        },
        Language::French => Fixed {
            reply: "Ce que vous portez semble très lourd et vous n'avez pas à le porter dans la solitude : parlez-en aujourd'hui à quelqu'un de confiance ou appelez une ligne d'écoute près de chez vous.",
            positive: "C'est un moment très difficile, et le dire est un premier pas vers de l'aide.",
            negative: "C'est un moment très difficile, trop lourd pour être porté dans la solitude.",
        },
        Language::German => Fixed {
            reply: "Was du trägst, klingt sehr schwer, und du musst es nicht allein tragen: Bitte sprich heute mit einem Menschen, dem du vertraust, oder ruf eine Krisenhotline in deiner Nähe an.",
            positive: "Das ist ein sehr schwerer Moment, und ihn auszusprechen ist ein erster Schritt zur Hilfe.",
            negative: "Das ist ein sehr schwerer Moment, zu schwer, um damit allein zu bleiben.",
        },
        Language::Chinese => Fixed {
            reply: "你心里的担子听起来非常沉重，但你不必独自承担，请今天就告诉一个你信任的人，或拨打当地的心理援助热线。",
            positive: "这是非常艰难的时刻，而把它说出来就是走向帮助的第一步。",
            negative: "这是非常艰难的时刻，沉重得不该独自承受。",
        },
        Language::Portuguese => Fixed {
            reply: "O que você carrega parece muito pesado e não precisa ser carregado em solidão: conte hoje a alguém de confiança ou ligue para uma linha de apoio da sua região.",
            positive: "É um momento muito difícil, e dizê-lo é um primeiro passo em direção à ajuda.",
            negative: "É um momento muito difícil, pesado demais para ser enfrentado em solidão.",
        },
    }
}

/// For harmful input: names what was said without saying it again.
pub fn sober(language: Language) -> Fixed {
    match language {
        Language::English => Fixed {
            reply: "That is a strong feeling, and a moment's pause can help you find words for it that you will still stand by tomorrow.",
            positive: "There is a strong feeling in these words, and it can also be said with respect.",
            negative: "These words are harsh and could hurt the people they speak of.",
        },
        Language::Japanese => Fixed {
            reply: "強い気持ちがあるのですね、少し間を置けば、明日になっても胸を張れる言葉がきっと見つかります。",
            positive: "この言葉には強い気持ちがあり、それは相手を尊重しながら伝えることもできます。",
            negative: "この言葉はきつく、話題にされた人を傷つけかねません。",
        },
        Language::Korean => Fixed {
            reply: "강한 감정이 느껴지네요, 잠시 숨을 고르면 내일도 떳떳할 수 있는 말을 찾을 수 있을 거예요.",
            positive: "이 말에는 강한 감정이 담겨 있고, 그 감정은 존중하며 전할 수도 있어요.",
            negative: "이 말은 거칠어서, 말에 담긴 사람들에게 상처를 줄 수 있어요.",
        },
        Language::Spanish => Fixed {
            reply: "Es un sentimiento fuerte, y una pausa puede ayudarte a encontrar palabras que mañana sigas sosteniendo.",
            positive: "Hay un sentimiento fuerte en estas palabras, y también puede decirse con respeto.",
            negative: "Estas palabras son duras y podrían herir a las personas de las que hablan.",
        },
        Language::French => Fixed {
            reply: "C'est un sentiment fort, et une courte pause peut vous aider à trouver des mots que vous assumerez encore demain.",
            positive: "Il y a un sentiment fort dans ces mots, et il peut aussi se dire avec respect.",
            negative: "Ces mots sont durs et pourraient blesser les personnes dont ils parlent.",
        },
        Language::German => Fixed {
            reply: "Das ist ein starkes Gefühl, und eine kurze Pause hilft dir, Worte dafür zu finden, zu denen du auch morgen noch stehst.",
            positive: "In diesen Worten steckt ein starkes Gefühl, und es lässt sich auch mit Respekt sagen.",
            negative: "Diese Worte sind hart und könnten die Menschen verletzen, von denen sie sprechen.",
        },
        Language::Chinese => Fixed {
            reply: "这是很强烈的感受，先停一停，会帮你找到明天依然认可的话。",
            positive: "这些话里有强烈的感受，也可以用尊重的方式说出来。",
            negative: "这些话很刺耳，可能会伤害被说到的人。",
        },
        Language::Portuguese => Fixed {
            reply: "É um sentimento forte, e uma pausa pode ajudar você a encontrar palavras que ainda defenderá amanhã.",
            positive: "Há um sentimento forte nestas palavras, e ele também pode ser dito com respeito.",
            negative: "Estas palavras são duras e podem ferir as pessoas de quem falam.",
        },
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_language_has_its_own_answers_and_they_fit_the_interface() {
        let all: Vec<Fixed> =
            Language::ALL.into_iter().flat_map(|language| [care(language), sober(language)]).collect();
        let texts: BTreeSet<&str> =
            all.iter().flat_map(|fixed| [fixed.reply, fixed.positive, fixed.negative]).collect();
        assert_eq!(texts.len(), 6 * Language::ALL.len());
        for fixed in all {
            assert!(fixed.reply.chars().count() <= 200, "{}", fixed.reply);
            assert_eq!(fixed.reply.matches(['.', '。', '!', '?']).count(), 1, "{}", fixed.reply);
        }
    }

    #[test]
    fn distress_comes_before_harm() {
        let scores = |self_harm: f32, hate: f32| Scores::new([0.0, hate, self_harm, 0.0, 0.0]);
        assert_eq!(due(scores(0.3, 0.9), Language::German), Some(care(Language::German)));
        assert_eq!(due(scores(0.29, 0.8), Language::Korean), Some(sober(Language::Korean)));
        assert_eq!(due(scores(0.29, 0.79), Language::Korean), None);
        assert_eq!(due(scores(0.2, 0.9), Language::English), Some(care(Language::English)));
        assert_eq!(due(scores(0.19, 0.79), Language::English), None);
    }
}
