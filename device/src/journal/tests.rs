//! Tests of a store that replicates another through a journal.

use super::*;
use crate::resource::ResourceStore;
use crate::variable::{RefVariable, Variable, VariableSlices};
use graph::{Code, DType, PartialShape, Tensor};
use std::any::Any;
use std::sync::atomic::AtomicI64;
use std::thread;

/// A store, its journal, and a replica of the store.
#[derive(Default)]
struct ReplicatedStore {
    journal: Arc<Journal>,
    primary: ResourceStore,
    replica: ResourceStore,
}

impl ReplicatedStore {
    fn new() -> Result<ReplicatedStore> {
        let stores = ReplicatedStore::default();
        stores.primary.attach(&stores.journal, 0)?;
        stores.apply(stores.journal.everything())?;
        Ok(stores)
    }

    fn apply(&self, changes: Vec<Change>) -> Result<()> {
        changes.into_iter().try_for_each(|change| change.apply(&self.replica))
    }

    fn variable(&self, name: &str) -> Result<Arc<Variable>> {
        self.primary
            .lookup_or_create("c", name, || Ok(Variable::new(name, DType::Float, PartialShape::unknown())))
    }

    /// Collects the changes, applies them to the replica, and returns a description of each.
    fn take(&self) -> Result<Vec<String>> {
        let changes = self.journal.take();
        let descriptions = changes.iter().map(|change| match &change.what {
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
        let descriptions = descriptions.collect();
        self.apply(changes)?;
        Ok(descriptions)
    }

    fn replica_value(&self, name: &str) -> Option<Tensor> {
        self.replica.find::<Variable>("c", name)?.read()
    }
}

fn floats(values: &[f32]) -> Result<Tensor> {
    Ok(Tensor::vector(values)?)
}

#[test]
fn changes_are_collected_whole_or_by_slices() -> Result<()> {
    let stores = ReplicatedStore::new()?;
    let v = stores.variable("v")?;
    assert_eq!(stores.take()?, [""; 0], "the variable has no value yet");
    *v.lock() = Some(floats(&[0.0; 20])?);
    assert_eq!(stores.take()?, ["v"]);
    let mut locked = v.lock();
    if let Some(value) = locked.slices_mut([3, 1].into_iter(), 2)? {
        let values = value.values_mut::<f32>()?;
        (values[2], values[7]) = (1.5, 2.5);
    }
    drop(locked);
    assert_eq!(stores.take()?, ["v[1, 3]"]);
    assert_eq!(stores.replica_value("v"), v.read());
    // Slices of different lengths, or of more than half the elements, become a change of the whole variable.
    for slices in [(0..2, 2), (0..1, 4)] {
        let _slices = v.lock().slices_mut(slices.0, slices.1)?;
    }
    assert_eq!(stores.take()?, ["v"]);
    let _slices = v.lock().slices_mut(0..9, 2)?;
    assert_eq!(stores.take()?, ["v"]);
    assert_eq!(stores.take()?, [""; 0]);
    Ok(())
}

#[test]
fn removals_and_creations_are_collected_in_order() -> Result<()> {
    let stores = ReplicatedStore::new()?;
    for (name, value) in [("a", 1.0), ("b", 2.0)] {
        *stores.variable(name)?.lock() = Some(floats(&[value])?);
    }
    let old = stores.variable("a")?;
    stores.primary.remove::<Variable>("c", "a");
    *stores.variable("a")?.lock() = Some(floats(&[3.0, 4.0])?);
    // The state of the first variable before its removal is not collected.
    assert_eq!(stores.take()?, ["b", "-a", "a"]);
    assert_eq!(stores.replica_value("a"), Some(floats(&[3.0, 4.0])?));
    stores.primary.clear("c");
    assert_eq!(stores.take()?, ["-c/"]);
    assert_eq!((stores.replica_value("a"), stores.replica_value("b")), (None, None));
    // A change of a variable that has been removed is not collected.
    *old.lock() = Some(floats(&[5.0])?);
    assert_eq!(stores.take()?, [""; 0]);
    assert!(stores.journal.everything().is_empty());
    Ok(())
}

#[test]
fn a_reference_variable_and_a_resource_variable_may_have_one_name() -> Result<()> {
    let stores = ReplicatedStore::new()?;
    let make = || Ok(RefVariable(Arc::new(Variable::new("v", DType::Float, PartialShape::unknown()))));
    let by_reference = stores.primary.lookup_or_create("c", "v", make)?;
    *by_reference.0.lock() = Some(floats(&[1.0])?);
    *stores.variable("v")?.lock() = Some(floats(&[2.0])?);
    stores.take()?;
    let replica_value = stores.replica.lookup::<RefVariable>("c", "v")?;
    assert_eq!(
        (replica_value.0.read(), stores.replica_value("v")),
        (by_reference.0.read(), Some(floats(&[2.0])?))
    );
    Ok(())
}

/// A resource that cannot be replicated.
#[derive(Debug)]
struct Unreplicated;

impl Resource for Unreplicated {
    const KIND: &'static str = "Words";
}

#[test]
fn resources_without_replicas_are_refused_by_name() -> Result<()> {
    let stores = ReplicatedStore::new()?;
    let refused = stores.primary.lookup_or_create("", "words", || Ok(Unreplicated));
    let error = refused.err().ok_or_else(|| Error::internal("the resource was created"))?;
    assert!(error.code() == Code::Unimplemented && error.to_string().contains("'words'"), "{error}");
    assert!(stores.primary.find::<Unreplicated>("", "words").is_none());
    Ok(())
}

#[test]
fn a_replica_can_be_replicated_in_turn() -> Result<()> {
    let stores = ReplicatedStore::new()?;
    *stores.variable("v")?.lock() = Some(floats(&[1.0])?);
    stores.take()?;
    let (journal, third) = (Arc::<Journal>::default(), ResourceStore::default());
    stores.replica.attach(&journal, 0)?;
    assert!(stores.replica.attach(&journal, 0).is_err());
    journal.everything().into_iter().try_for_each(|change| change.apply(&third))?;
    assert_eq!(third.lookup::<Variable>("c", "v")?.read(), stores.replica_value("v"));
    // After `stop`, changes are not noted.
    journal.stop();
    *stores.replica.lookup::<Variable>("c", "v")?.lock() = None;
    assert!(journal.take().is_empty());
    Ok(())
}

/// One thread changes `x`, then `y`; another thread collects changes.
#[test]
fn no_change_is_collected_before_an_earlier_one() -> Result<()> {
    const LAST: i64 = 20_000;
    let stores = ReplicatedStore::new()?;
    let [x, y] = [stores.variable("x")?, stores.variable("y")?];
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
        let number = |name| stores.replica_value(name).map_or(Ok(0), |value| value.item::<i64>());
        loop {
            let at_least = done.load(Ordering::Acquire);
            stores.take()?;
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
fn changes_under_one_lock_are_collected_together() -> Result<()> {
    let stores = ReplicatedStore::new()?;
    let [x, y] = [stores.variable("x")?, stores.variable("y")?];
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
            stores.take()?;
            assert_eq!(stores.replica_value("x"), stores.replica_value("y"));
        }
        changing.join().unwrap_or_else(|_| Err(Error::internal("the thread panicked")))
    })
}

#[test]
fn a_variable_without_a_value_does_not_mark_the_store_used() -> Result<()> {
    let stores = ReplicatedStore::new()?;
    let v = stores.variable("v")?;
    assert!(!stores.journal.has_changed());
    *v.lock() = Some(floats(&[0.0])?);
    assert!(stores.journal.has_changed());
    Ok(())
}

#[test]
fn applying_changes_marks_the_replica_used() -> Result<()> {
    let stores = ReplicatedStore::new()?;
    let journal = Arc::new(Journal::default());
    stores.replica.attach(&journal, 0)?;
    *stores.variable("v")?.lock() = Some(floats(&[0.0])?);
    assert!(!journal.has_changed());
    stores.take()?;
    assert!(journal.has_changed());
    Ok(())
}

#[test]
fn private_resources_are_not_replicated() -> Result<()> {
    let stores = ReplicatedStore::new()?;
    let make = || Ok(Variable::new("private", DType::Float, PartialShape::unknown()));
    let private = stores.primary.lookup_or_create_private("c", "private", make)?;
    *private.lock() = Some(floats(&[1.0])?);
    assert!(stores.primary.remove::<Variable>("c", "private"));
    assert_eq!(stores.take()?, [""; 0]);
    assert!(stores.journal.everything().is_empty());
    Ok(())
}

#[test]
fn an_update_of_no_slices_is_not_a_change() -> Result<()> {
    let stores = ReplicatedStore::new()?;
    let v = stores.variable("v")?;
    *v.lock() = Some(floats(&[0.0; 8])?);
    stores.take()?;
    v.lock().slices_mut(std::iter::empty(), 0)?;
    assert_eq!(stores.take()?, [""; 0]);
    // An empty update does not turn later slices of another length into a change of the whole variable.
    v.lock().slices_mut(std::iter::empty(), 0)?;
    v.lock().slices_mut([1].into_iter(), 2)?;
    assert_eq!(stores.take()?, ["v[1]"]);
    Ok(())
}
