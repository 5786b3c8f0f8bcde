//! Elements that are objects and not plain bytes: handles of resources, and variants.

use super::Tensor;
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::shape::PartialShape;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// The name of an object that lives on a device: what a tensor of dtype `resource` holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ResourceHandle {
    pub device: Arc<str>,
    pub container: Arc<str>,
    pub name: Arc<str>,
    /// A hash of the kind of object, and its name for messages.
    pub hash_code: u64,
    pub type_name: Arc<str>,
    /// What is known of a variable's value.
    pub dtypes_and_shapes: Vec<(DType, PartialShape)>,
}

/// What an element of dtype `variant` may be: a list of tensors, an optional value, a dataset. It is immutable
/// and shared; a kernel that changes one makes another.
pub trait VariantObject: Any + Send + Sync + fmt::Debug {
    /// The kind's name, as it is on the wire and in messages.
    fn type_name(&self) -> &'static str;

    /// How deep variants nest in it, itself included.
    fn nesting(&self) -> usize {
        1
    }

    /// How many tensors it holds, and places for such, at any depth: each as often as it is held.
    fn tensors(&self) -> u64 {
        0
    }
}

/// What lists and optionals hold: tensors, of whichever memory.
pub trait Component: Clone + fmt::Debug + Send + Sync + 'static {
    /// The variants that it is, where it is a tensor of such.
    fn variants(&self) -> Option<&[Variant]>;
}

impl Component for Tensor {
    fn variants(&self) -> Option<&[Variant]> {
        self.as_variants().ok()
    }
}

/// Variants within variants go no deeper: each level is one of the stack when the outermost is dropped.
pub const MAX_NESTING: usize = 64;

/// Variants within variants hold no more tensors together, each counted as often as it is held: who walks through all of them,
/// to write them down or to make zeros of them, comes to an end.
pub const MAX_TENSORS: u64 = 1 << 24;

/// What the variants within a list or an optional come to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Within {
    pub(super) depth: usize,
    pub(super) tensors: u64,
}

impl Within {
    pub(super) const NOTHING: Within = Within { depth: 0, tensors: 0 };

    fn of(component: &impl Component) -> Within {
        let objects = component.variants().unwrap_or_default().iter().filter_map(Variant::object);
        objects.fold(Within::NOTHING, |all, object| Within {
            depth: all.depth.max(object.nesting()),
            tensors: all.tensors.saturating_add(object.tensors()),
        })
    }

    /// With a component more.
    ///
    /// # Errors
    /// `ResourceExhausted` if variants nest too deep, or hold too many tensors.
    pub(super) fn with(self, component: &impl Component) -> Result<Within> {
        let more = Within::of(component);
        let all =
            Within { depth: self.depth.max(more.depth), tensors: self.tensors.saturating_add(more.tensors) };
        let exhausted = |message: String| Err(Error::Invalid { code: Code::ResourceExhausted, message });
        if all.depth >= MAX_NESTING {
            return exhausted(format!("variants are nested deeper than {MAX_NESTING}"));
        }
        if all.tensors > MAX_TENSORS {
            return exhausted(format!("variants within variants hold more than {MAX_TENSORS} tensors"));
        }
        Ok(all)
    }

    /// Without a component that is no longer held; how deep the others are, nobody looks.
    pub(super) fn without(self, component: &impl Component) -> Within {
        Within { tensors: self.tensors.saturating_sub(Within::of(component).tensors), ..self }
    }
}

/// An element of dtype `variant`: an object, or nothing.
#[derive(Clone, Default)]
pub struct Variant(Option<Arc<dyn VariantObject>>);

impl Variant {
    /// Nothing: what a tensor of zeros holds.
    pub const EMPTY: Variant = Variant(None);

    pub fn new<T: VariantObject>(object: T) -> Variant {
        Variant(Some(Arc::new(object)))
    }

    /// The object, if it is a `T`.
    pub fn get<T: VariantObject>(&self) -> Option<&T> {
        (self.0.as_deref()? as &dyn Any).downcast_ref()
    }

    /// The object, shared.
    ///
    /// # Errors
    /// `InvalidArgument` that says what it is instead, where `what` is what is wanted.
    pub fn expect<T: VariantObject>(&self, what: &str) -> Result<Arc<T>> {
        match self.0.clone().map(|object| (object.clone() as Arc<dyn Any + Send + Sync>).downcast::<T>()) {
            Some(Ok(object)) => Ok(object),
            _ => crate::invalid!("expected a variant that holds {what}, got {}", self.type_name()),
        }
    }

    /// The object for changes; copied first if others hold it.
    ///
    /// # Errors
    /// As [`Variant::expect`].
    pub fn make_mut<T: VariantObject + Clone>(&mut self, what: &str) -> Result<&mut T> {
        let is_unique = self.0.as_mut().is_some_and(|object| Arc::get_mut(object).is_some());
        if !is_unique {
            *self = Variant::new(T::clone(&*self.expect::<T>(what)?));
        }
        let name = self.type_name();
        let object = self.0.as_mut().and_then(Arc::get_mut).map(|object| object as &mut dyn Any);
        match object.and_then(|object| object.downcast_mut()) {
            Some(object) => Ok(object),
            None => crate::invalid!("expected a variant that holds {what}, got {name}"),
        }
    }

    pub fn object(&self) -> Option<&Arc<dyn VariantObject>> {
        self.0.as_ref()
    }

    pub fn type_name(&self) -> &'static str {
        self.0.as_ref().map_or("nothing", |object| object.type_name())
    }
}

impl fmt::Debug for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(object) => object.fmt(f),
            None => f.write_str("nothing"),
        }
    }
}

/// The same object, not an equal one.
impl PartialEq for Variant {
    fn eq(&self, other: &Variant) -> bool {
        match (&self.0, &other.0) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (a, b) => a.is_none() && b.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Pair(u8, u8);

    impl VariantObject for Pair {
        fn type_name(&self) -> &'static str {
            "pair"
        }
    }

    #[derive(Debug)]
    struct Other;

    impl VariantObject for Other {
        fn type_name(&self) -> &'static str {
            "other"
        }
    }

    #[test]
    fn a_variant_gives_its_object_to_who_knows_its_type() -> Result<()> {
        let variant = Variant::new(Pair(1, 2));
        assert_eq!(variant.get::<Pair>().map(|p| p.0 + p.1), Some(3));
        assert_eq!(variant.expect::<Pair>("a pair")?.1, 2);
        assert!(variant.get::<Other>().is_none());
        let refused = variant.expect::<Other>("another").map(|_| ()).map_err(|e| e.to_string());
        assert_eq!(refused, Err("expected a variant that holds another, got pair".to_owned()));
        assert!(Variant::EMPTY.expect::<Pair>("a pair").is_err());
        assert_eq!(variant, variant.clone());
        assert_ne!(variant, Variant::new(Pair(1, 2)));
        Ok(())
    }
}
