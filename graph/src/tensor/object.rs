//! Elements that are objects instead of plain bytes: resource handles and variants.

use super::Tensor;
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::shape::PartialShape;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// The name of an object that is stored on a device: an element of dtype `resource`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ResourceHandle {
    pub device: Arc<str>,
    pub container: Arc<str>,
    pub name: Arc<str>,
    /// A hash of `type_name`.
    pub hash_code: u64,
    pub type_name: Arc<str>,
    /// The known dtypes and shapes of a variable's value.
    pub dtypes_and_shapes: Vec<(DType, PartialShape)>,
}

/// An object in a variant tensor: a list of tensors, an optional value, a dataset. Objects are immutable and shared;
/// a kernel that changes an object makes a new one.
pub trait VariantObject: Any + Send + Sync + fmt::Debug {
    /// Returns the name of the object's type on the wire and in messages.
    fn type_name(&self) -> &'static str;

    /// Returns the depth of nested variants, this object included.
    fn nesting(&self) -> usize {
        1
    }

    /// Returns the number of tensors and unset elements in the object at any depth; a tensor that is held several
    /// times counts each time.
    fn tensors(&self) -> u64 {
        0
    }
}

/// A tensor inside a list or an optional value, in host or device memory.
pub trait VariantComponent: Clone + fmt::Debug + Send + Sync + 'static {
    /// Returns the elements of a variant tensor; `None` for other dtypes.
    fn variants(&self) -> Option<&[Variant]>;
}

impl VariantComponent for Tensor {
    fn variants(&self) -> Option<&[Variant]> {
        self.as_variants().ok()
    }
}

/// The largest depth of nested variants. A limit is needed because dropping the outermost object recurses through all
/// levels.
pub const MAX_NESTING: usize = 64;

/// The largest number of tensors in nested variants, where a tensor that is held several times counts each time. The
/// limit bounds the time of code that visits all of them, for example to serialize them.
pub const MAX_TENSORS: u64 = 1 << 24;

/// The depth and the number of tensors of the variants nested in a list or an optional value.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Nesting {
    pub(super) depth: usize,
    pub(super) tensors: u64,
}

impl Nesting {
    pub(super) const NONE: Nesting = Nesting { depth: 0, tensors: 0 };

    /// Returns the depth and the number of tensors of the variants in one tensor.
    fn of(component: &impl VariantComponent) -> Nesting {
        let objects = component.variants().unwrap_or_default().iter().filter_map(Variant::object);
        objects.fold(Nesting::NONE, |all, object| Nesting {
            depth: all.depth.max(object.nesting()),
            tensors: all.tensors.saturating_add(object.tensors()),
        })
    }

    /// Returns the depth and number of tensors after a component is added.
    ///
    /// # Errors
    /// `ResourceExhausted` if variants are nested too deep or hold too many tensors.
    pub(super) fn with(self, component: &impl VariantComponent) -> Result<Nesting> {
        let more = Nesting::of(component);
        let all =
            Nesting { depth: self.depth.max(more.depth), tensors: self.tensors.saturating_add(more.tensors) };
        let exhausted = |message: String| Err(Error::Invalid { code: Code::ResourceExhausted, message });
        if all.depth >= MAX_NESTING {
            return exhausted(format!("variants are nested deeper than {MAX_NESTING}"));
        }
        if all.tensors > MAX_TENSORS {
            return exhausted(format!("variants within variants hold more than {MAX_TENSORS} tensors"));
        }
        Ok(all)
    }

    /// Returns the depth and number of tensors after a component is removed. The depth stays as an upper bound, because
    /// the remaining components are not visited.
    pub(super) fn without(self, component: &impl VariantComponent) -> Nesting {
        Nesting { tensors: self.tensors.saturating_sub(Nesting::of(component).tensors), ..self }
    }
}

/// An element of dtype `variant`: an object, or empty.
#[derive(Clone, Default)]
pub struct Variant(Option<Arc<dyn VariantObject>>);

impl Variant {
    /// The empty variant, the element of a variant tensor of zeros.
    pub const EMPTY: Variant = Variant(None);

    /// Returns a variant that holds the object.
    pub fn new<T: VariantObject>(object: T) -> Variant {
        Variant(Some(Arc::new(object)))
    }

    /// Returns the object, if it is a `T`.
    pub fn get<T: VariantObject>(&self) -> Option<&T> {
        (self.0.as_deref()? as &dyn Any).downcast_ref()
    }

    /// Returns a shared pointer to the object.
    ///
    /// # Errors
    /// `InvalidArgument` naming the actual type, if the object is not a `T`; `what` describes the expected object.
    pub fn expect<T: VariantObject>(&self, what: &str) -> Result<Arc<T>> {
        match self.0.clone().map(|object| (object.clone() as Arc<dyn Any + Send + Sync>).downcast::<T>()) {
            Some(Ok(object)) => Ok(object),
            _ => crate::invalid!("expected a variant that holds {what}, got {}", self.type_name()),
        }
    }

    /// Returns the object for writing; a shared object is copied first.
    ///
    /// # Errors
    /// The errors of [`Variant::expect`].
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

    /// Returns the object; `None` for the empty variant.
    pub fn object(&self) -> Option<&Arc<dyn VariantObject>> {
        self.0.as_ref()
    }

    /// Returns the name of the object's type; `nothing` for the empty variant.
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

/// Two variants are equal if they hold the same object, or are both empty.
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
    struct Unrelated;

    impl VariantObject for Unrelated {
        fn type_name(&self) -> &'static str {
            "other"
        }
    }

    #[test]
    fn variants_downcast_to_their_own_type_only() -> Result<()> {
        let variant = Variant::new(Pair(1, 2));
        assert_eq!(variant.get::<Pair>().map(|p| p.0 + p.1), Some(3));
        assert_eq!(variant.expect::<Pair>("a pair")?.1, 2);
        assert!(variant.get::<Unrelated>().is_none());
        let refused = variant.expect::<Unrelated>("another").map(|_| ()).map_err(|e| e.to_string());
        assert_eq!(refused, Err("expected a variant that holds another, got pair".to_owned()));
        assert!(Variant::EMPTY.expect::<Pair>("a pair").is_err());
        assert_eq!(variant, variant.clone());
        assert_ne!(variant, Variant::new(Pair(1, 2)));
        Ok(())
    }
}
