//! A store that follows another.

use super::*;
use crate::resource::ResourceStore;
use crate::variable::{RefVariable, Variable, VariableSlices};
use graph::{Code, DType, PartialShape, Tensor};
use std::any::Any;
use std::sync::atomic::AtomicI64;
use std::thread;

/// A store, its journal, and a store that follows.
#[derive(Default)]
struct Pair {
    journal: Arc<Journal>,
    own: ResourceStore,
    follower: ResourceStore,
}

impl Pair {
    fn new() -> Result<Pair> {
        let pair = Pair::default();
        pair.own.attach(&pair.journal, 0)?;
        pair.follow(pair.journal.everything())?;
        Ok(pair)
    }

    fn follow(&self, changes: Vec<Change>) -> Result<()> {
        changes.into_iter().try_for_each(|change| change.apply(&self.follower))
    }

    fn variable(&self, name: &str) -> Result<Arc<Variable>> {
        self.own
            .lookup_or_create("c", name, || Ok(Variable::new(name, DType::Float, PartialShape::unknown())))
    }

    /// Takes what has changed, and how much of each resource that was.
    fn take(&self) -> Result<Vec<String>> {
        let changes = self.journal.take();
        let told = changes.iter().map(|change| match &change.what {
            ChangeKind::State { name, state, .. } => {
                let state: &dyn Any = &**state;
                match state.downcast_ref::<VariableSlices>() {
                    Some(slices) => format!("{name}{:?}", slices.numbers),
                    None => name.to_string(),
                }
            }
            ChangeKind::Removed { name, .. } => format!("-{name}"),
            ChangeKind::Cleared => format!("-{}/", change.container),
        });
        let told = told.collect();
        self.follow(changes)?;
        Ok(told)
    }

    fn followed(&self, name: &str) -> Option<Tensor> {
        self.follower.find::<Variable>("c", name)?.read()
    }
}

fn floats(values: &[f32]) -> Result<Tensor> {
    Ok(Tensor::vector(values)?)
}

#[test]
fn what_changes_is_followed_whole_or_by_slices() -> Result<()> {
    let pair = Pair::new()?;
    let v = pair.variable("v")?;
    assert_eq!(pair.take()?, [""; 0], "it has no value yet");
    *v.lock() = Some(floats(&[0.0; 20])?);
    assert_eq!(pair.take()?, ["v"]);
    let mut locked = v.lock();
    if let Some(value) = locked.slices_mut([3, 1].into_iter(), 2)? {
        let values = value.values_mut::<f32>()?;
        (values[2], values[7]) = (1.5, 2.5);
    }
    drop(locked);
    assert_eq!(pair.take()?, ["v[1, 3]"]);
    assert_eq!(pair.followed("v"), v.read());
    // Slices of more than one kind, or most of them, are all.
    for slices in [(0..2, 2), (0..1, 4)] {
        let _slices = v.lock().slices_mut(slices.0, slices.1)?;
    }
    assert_eq!(pair.take()?, ["v"]);
    let _slices = v.lock().slices_mut(0..9, 2)?;
    assert_eq!(pair.take()?, ["v"]);
    assert_eq!(pair.take()?, [""; 0]);
    Ok(())
}

#[test]
fn what_is_removed_and_made_again_is_followed_in_order() -> Result<()> {
    let pair = Pair::new()?;
    for (name, value) in [("a", 1.0), ("b", 2.0)] {
        *pair.variable(name)?.lock() = Some(floats(&[value])?);
    }
    let old = pair.variable("a")?;
    pair.own.remove::<Variable>("c", "a");
    *pair.variable("a")?.lock() = Some(floats(&[3.0, 4.0])?);
    // What the first one was before it was removed is of no use to anybody.
    assert_eq!(pair.take()?, ["b", "-a", "a"]);
    assert_eq!(pair.followed("a"), Some(floats(&[3.0, 4.0])?));
    pair.own.clear("c");
    assert_eq!(pair.take()?, ["-c/"]);
    assert_eq!((pair.followed("a"), pair.followed("b")), (None, None));
    // Whoever still holds what was removed changes nothing that a newcomer is told.
    *old.lock() = Some(floats(&[5.0])?);
    assert_eq!(pair.take()?, [""; 0]);
    assert!(pair.journal.everything().is_empty());
    Ok(())
}

#[test]
fn a_reference_and_a_resource_of_one_name_are_two() -> Result<()> {
    let pair = Pair::new()?;
    let make = || Ok(RefVariable(Arc::new(Variable::new("v", DType::Float, PartialShape::unknown()))));
    let by_reference = pair.own.lookup_or_create("c", "v", make)?;
    *by_reference.0.lock() = Some(floats(&[1.0])?);
    *pair.variable("v")?.lock() = Some(floats(&[2.0])?);
    pair.take()?;
    let followed = pair.follower.lookup::<RefVariable>("c", "v")?;
    assert_eq!((followed.0.read(), pair.followed("v")), (by_reference.0.read(), Some(floats(&[2.0])?)));
    Ok(())
}

/// Something that only its own process knows.
#[derive(Debug)]
struct Words;

impl Resource for Words {
    const KIND: &'static str = "Words";
}

#[test]
fn what_no_other_process_can_hold_is_refused_by_name() -> Result<()> {
    let pair = Pair::new()?;
    let refused = pair.own.lookup_or_create("", "words", || Ok(Words));
    let error = refused.err().ok_or_else(|| Error::internal("it was made"))?;
    assert!(error.code() == Code::Unimplemented && error.to_string().contains("'words'"), "{error}");
    assert!(pair.own.find::<Words>("", "words").is_none());
    Ok(())
}

#[test]
fn a_store_that_has_followed_is_followed_in_turn() -> Result<()> {
    let pair = Pair::new()?;
    *pair.variable("v")?.lock() = Some(floats(&[1.0])?);
    pair.take()?;
    let (journal, third) = (Arc::<Journal>::default(), ResourceStore::default());
    pair.follower.attach(&journal, 0)?;
    assert!(pair.follower.attach(&journal, 0).is_err());
    journal.everything().into_iter().try_for_each(|change| change.apply(&third))?;
    assert_eq!(third.lookup::<Variable>("c", "v")?.read(), pair.followed("v"));
    // Nobody wants to know any more.
    journal.stop();
    *pair.follower.lookup::<Variable>("c", "v")?.lock() = None;
    assert!(journal.take().is_empty());
    Ok(())
}

/// `y` follows `x`, on one thread; states are taken on another.
#[test]
fn nothing_is_taken_before_what_it_follows_from() -> Result<()> {
    const LAST: i64 = 20_000;
    let pair = Pair::new()?;
    let [x, y] = [pair.variable("x")?, pair.variable("y")?];
    let done = AtomicI64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1..=LAST {
                let value = Tensor::scalar(number);
                *x.lock() = Some(value.clone());
                *y.lock() = Some(value);
                done.store(number, Ordering::Release);
            }
        });
        let number = |name| pair.followed(name).map_or(Ok(0), |value| value.item::<i64>());
        loop {
            let at_least = done.load(Ordering::Acquire);
            pair.take()?;
            let (x, y) = (number("x")?, number("y")?);
            assert!(x == y || x == y + 1, "{x}, {y}");
            assert!(y >= at_least, "{y} after {at_least}");
            if at_least == LAST {
                return Ok(());
            }
        }
    })
}

#[test]
fn what_changes_together_is_taken_together() -> Result<()> {
    let pair = Pair::new()?;
    let [x, y] = [pair.variable("x")?, pair.variable("y")?];
    thread::scope(|scope| {
        let change = || -> Result<()> {
            for number in 0..20_000i64 {
                let [mut x, mut y] = crate::variable::lock_all([&x, &y])?;
                *x = Some(number.into());
                *y = Some(number.into());
            }
            Ok(())
        };
        let changing = scope.spawn(change);
        while !changing.is_finished() {
            pair.take()?;
            assert_eq!(pair.followed("x"), pair.followed("y"));
        }
        changing.join().unwrap_or_else(|_| Err(Error::internal("it panicked")))
    })
}

#[test]
fn what_has_no_value_yet_is_nothing_to_lose() -> Result<()> {
    let pair = Pair::new()?;
    let v = pair.variable("v")?;
    assert!(!pair.journal.was_used());
    *v.lock() = Some(floats(&[0.0])?);
    assert!(pair.journal.was_used());
    Ok(())
}

#[test]
fn who_follows_a_store_has_used_its_own() -> Result<()> {
    let pair = Pair::new()?;
    let own = Arc::new(Journal::default());
    pair.follower.attach(&own, 0)?;
    *pair.variable("v")?.lock() = Some(floats(&[0.0])?);
    assert!(!own.was_used());
    pair.take()?;
    assert!(own.was_used());
    Ok(())
}

#[test]
fn what_ends_with_its_kernel_is_not_followed() -> Result<()> {
    let pair = Pair::new()?;
    let make = || Ok(Variable::new("private", DType::Float, PartialShape::unknown()));
    let private = pair.own.lookup_or_create_private("c", "private", make)?;
    *private.lock() = Some(floats(&[1.0])?);
    assert!(pair.own.remove::<Variable>("c", "private"));
    assert_eq!(pair.take()?, [""; 0]);
    assert!(pair.journal.everything().is_empty());
    Ok(())
}

#[test]
fn an_update_of_no_slices_is_none() -> Result<()> {
    let pair = Pair::new()?;
    let v = pair.variable("v")?;
    *v.lock() = Some(floats(&[0.0; 8])?);
    pair.take()?;
    v.lock().slices_mut(std::iter::empty(), 0)?;
    assert_eq!(pair.take()?, [""; 0]);
    // Nor does it make slices of another length of them.
    v.lock().slices_mut(std::iter::empty(), 0)?;
    v.lock().slices_mut([1].into_iter(), 2)?;
    assert_eq!(pair.take()?, ["v[1]"]);
    Ok(())
}
