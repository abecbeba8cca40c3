//! Whether what a manifest says makes sense: kinds with their parts, names of files, bounds of numbers.
//!
//! Refuses to look at a file; those that the manifest lists are [`super::bundle`]'s.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    path::{Component, Path},
};

use super::manifest::{
    self, CacheForm, EnsembleSpec, GeneratorSpec, Kind, Manifest, MoodSpec, TextReaderSpec, VERDICTS,
};
use crate::domain::{Category, Expressibility};

/// What a manifest says must make sense by itself, whatever its files are.
///
/// # Errors
/// What does not, in words that follow the manifest's name.
pub(super) fn check(manifest: &Manifest) -> Result<(), String> {
    if manifest.format != manifest::FORMAT {
        return Err(format!("format {} instead of {}", manifest.format, manifest::FORMAT));
    }
    if let Some(missing) =
        manifest.kind.files().iter().find(|name| !manifest.files.iter().any(|file| file.path == **name))
    {
        return Err(format!("it lists no {missing}"));
    }
    for file in &manifest.files {
        // External data of a graph must stay inside the bundle, so a name with a folder in it is never followed, but for
        // those of its company, which are bundles themselves.
        let mut parts = Path::new(&file.path).components();
        let company = |name: &OsStr| manifest.company().iter().any(|id| name == id.as_str());
        match (parts.next(), parts.next(), parts.next()) {
            (Some(Component::Normal(_)), None, None) => {}
            (Some(Component::Normal(folder)), Some(Component::Normal(_)), None) if company(folder) => {}
            _ => return Err(format!("file name {:?} leaves the folder", file.path)),
        }
    }
    match manifest.kind {
        Kind::Generator => check_generator(manifest, manifest.generator.as_ref().ok_or("no generator part")?)?,
        Kind::TextClassifier => {
            let spec = manifest.text_classifier.as_ref().ok_or("no text_classifier part")?;
            if spec.categories != Category::ALL.map(|category| category.as_str().to_owned()) {
                return Err("categories are not in the order of the interface".into());
            }
            match (&spec.expressibility, &spec.labels) {
                (Some(head), None) if head.classes != Expressibility::ALL.map(|class| class.as_str().to_owned()) => {
                    return Err("expressibility classes are not in the expected order".into());
                }
                (None, Some(labels)) if labels.order.iter().all(|label| label.category.is_none()) => {
                    return Err("no label stands for a category".into());
                }
                (Some(_), None) | (None, Some(_)) => {}
                _ => return Err("it has neither an expressibility head nor labels, or both".into()),
            }
            if spec.window < 8 || spec.stride == 0 || spec.stride > spec.window - 2 {
                return Err("window must be at least 8 and stride between 1 and window - 2".into());
            }
            let together = spec.ensemble.iter().flat_map(|ensemble| &ensemble.calibration);
            if spec.calibration.iter().chain(together).any(|s| !(s.below > 0.0 && s.above > 0.0 && s.point.is_finite()))
            {
                return Err("a calibration slope is not positive".into());
            }
            if let Some(EnsembleSpec { members, weights, from, .. }) = &spec.ensemble {
                if members.is_empty() || members.iter().collect::<BTreeSet<_>>().len() < members.len() {
                    return Err("its ensemble has no members, or one twice".into());
                }
                let told = [0, members.len() + 1].contains(&weights.len());
                if !told || !weights.iter().all(|weight| *weight > 0.0 && weight.is_finite()) {
                    return Err(
                        "its ensemble needs a weight above 0 for itself and for each member, or none at all".into()
                    );
                }
                if from.is_some_and(|from| !(0.0..=1.0).contains(&from)) {
                    return Err("its ensemble is asked from no probability on".into());
                }
            }
            if spec.elsewhere.is_some() && spec.languages.is_any() {
                return Err("another judges what it does not read, and it reads everything".into());
            }
        }
        Kind::ImageClassifier => {
            let spec = manifest.image_classifier.as_ref().ok_or("no image_classifier part")?;
            if spec.size == 0 || spec.sexual.scale <= 0.0 {
                return Err("input size or sexual scale is not positive".into());
            }
            if spec.glance.is_some_and(|share| !(0.1..1.0).contains(&share)) {
                return Err("the first look for text is not at 0.1 to 1 of a page's size".into());
            }
            if let Some(name) = spec.sexual.weights.keys().find(|name| !spec.classes.contains(name)) {
                return Err(format!("sexual weight for an unknown class {name:?}"));
            }
            let scored = |category| {
                category == Category::Sexual || spec.heads.iter().filter(|&&head| head == category).count() > 1
            };
            if spec.heads.iter().copied().any(scored) {
                return Err("an image head is for a category that has its score already".into());
            }
        }
        Kind::TextReader => check_reader(manifest.text_reader.as_ref().ok_or("no text_reader part")?)?,
        Kind::AnswerJudge => {
            let spec = manifest.answer_judge.as_ref().ok_or("no answer_judge part")?;
            if spec.verdicts.as_ref().is_some_and(|verdicts| *verdicts != VERDICTS) {
                return Err("verdicts are not in the expected order".into());
            }
            match &spec.situations {
                None if spec.verdicts.is_none() => {
                    return Err("it tells neither verdicts nor what was written beforehand".into());
                }
                Some(name) if !manifest.files.iter().any(|file| file.path == *name) => {
                    return Err(format!("it lists no {name}, which says what was written beforehand"));
                }
                _ => {}
            }
            if [spec.text_tokens, spec.answer_tokens].iter().any(|tokens| !(1..=4_096).contains(tokens)) {
                return Err("the judge reads not between 1 and 4,096 tokens of a text and of an answer".into());
            }
        }
    }
    Ok(())
}

fn check_generator(manifest: &Manifest, spec: &GeneratorSpec) -> Result<(), String> {
    if spec.layers == 0 || spec.kv_heads == 0 || spec.head_dim == 0 || spec.vocab == 0 || spec.window < 16 {
        return Err("a dimension of the generator is zero or its window is below 16".into());
    }
    let tasks = [&spec.tasks.positive, &spec.tasks.negative, &spec.tasks.reply];
    if tasks.iter().filter_map(|task| task.most_doubt).any(|most| !(most > 0.0 && most.is_finite())) {
        return Err("a task's most_doubt is not above zero".into());
    }
    if tasks.iter().filter_map(|task| task.least_right).any(|least| !(0.0..=1.0).contains(&least)) {
        return Err("a task's least_right is not from 0 to 1".into());
    }
    let bounds = tasks.iter().filter_map(|task| task.beforehand).flat_map(|one| [one.english, one.others]);
    if bounds.flatten().any(|least| !(0.0..=1.0).contains(&least)) {
        return Err("a task's beforehand is not from 0 to 1".into());
    }
    if let Some(MoodSpec { tokens, weights, bias }) = &spec.mood {
        let known = |&token| usize::try_from(token).is_ok_and(|token: usize| token < spec.vocab);
        if tokens.is_empty() || !tokens.iter().all(known) {
            return Err("its mood is not read from tokens of its vocabulary".into());
        }
        let finite = weights.iter().flatten().chain(bias).all(|number| number.is_finite());
        if !finite || weights.iter().any(|weights| weights.len() != tokens.len()) {
            return Err("its mood is not read with one finite number for each token".into());
        }
    }
    let mut named = [&spec.prefill, &spec.products, &spec.answer_tokens].into_iter().flatten();
    if let Some(name) = named.find(|name| !manifest.files.iter().any(|file| file.path == **name)) {
        return Err(format!("it lists no {name}, which its generator needs"));
    }
    let others = [&spec.prefill, &spec.products, &spec.answer_tokens];
    if spec.cache == CacheForm::Growing && others.into_iter().any(Option::is_some) {
        return Err("a generator that keeps its own cache has neither prefill nor products nor answer_tokens".into());
    }
    Ok(())
}

/// Bounds what a line or a page may cost: a slip in a manifest must not become a pass over gigabytes.
fn check_reader(spec: &TextReaderSpec) -> Result<(), String> {
    let TextReaderSpec { detector, orientation, recogniser } = spec;
    if !(1..=256).contains(&detector.multiple)
        || !(1_024..=16_000_000).contains(&detector.most_pixels)
        || detector.least_pixels > detector.most_pixels
        || !(256..=16_384).contains(&detector.most_side)
    {
        return Err("the detector's input has no size between 1,024 and 16,000,000 pixels".into());
    }
    let shares = [detector.threshold, detector.box_threshold, recogniser.threshold];
    if shares.iter().any(|share| !(0.0..1.0).contains(share)) || !(0.0..=10.0).contains(&detector.unclip) {
        return Err("a threshold of the text reader is not from 0 to 1, or its unclip not from 0 to 10".into());
    }
    let sides =
        [orientation.height, orientation.width, recogniser.height, recogniser.least_width, recogniser.width_step];
    if sides.iter().any(|side| !(8..=1_024).contains(side))
        || !(recogniser.least_width..=16_384).contains(&recogniser.most_width)
    {
        return Err("the size of a line for the text reader is not from 8 to 1,024 pixels".into());
    }
    Ok(())
}
