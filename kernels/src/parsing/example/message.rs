//! The wire format of `Example { features: Features { feature: map<string, Feature> } }`.

use bytes::Bytes;
use checkpoint::proto::{Field, Fields, Malformed};
use graph::{DType, Shape, Tensor};
use rustc_hash::FxHashMap;

/// The features of an example by name, with their value lists still encoded.
pub(super) struct Example<'a>(FxHashMap<&'a [u8], Feature<'a>>);

/// The dtype and the encoded list of a feature's values; `None` if the feature has no list.
#[derive(Clone, Copy)]
pub(super) struct Feature<'a>(Option<(DType, &'a [u8])>);

impl<'a> Example<'a> {
    pub(super) fn of(message: &'a [u8]) -> Result<Example<'a>, Malformed> {
        let mut features = FxHashMap::default();
        for field in Fields::of(message) {
            let (1, all) = field? else { continue };
            for field in all.fields()? {
                let (1, entry) = field? else { continue };
                let (mut key, mut feature) = (&b""[..], Feature(None));
                for field in entry.fields()? {
                    match field? {
                        (1, value) => key = value.bytes()?,
                        (2, value) => feature = Feature::of(value)?,
                        _ => {}
                    }
                }
                features.insert(key, feature);
            }
        }
        Ok(Example(features))
    }

    /// Returns whether the example has a feature of this name without a list.
    pub(super) fn is_unset(&self, key: &[u8]) -> bool {
        self.0.get(key).is_some_and(|feature| feature.0.is_none())
    }

    /// Returns the dtype and the encoded list of a feature, if it has one.
    pub(super) fn get(&self, key: &[u8]) -> Option<(DType, &'a [u8])> {
        self.0.get(key)?.0
    }
}

/// The feature lists of a `SequenceExample { context: Features, feature_lists: FeatureLists }` by name, where a
/// `FeatureLists { feature_list: map<string, FeatureList> }` has lists of one feature for each step.
pub(super) struct FeatureLists<'a>(FxHashMap<&'a [u8], Vec<Feature<'a>>>);

impl<'a> FeatureLists<'a> {
    pub(super) fn of(message: &'a [u8]) -> Result<FeatureLists<'a>, Malformed> {
        let mut lists = FxHashMap::default();
        for field in Fields::of(message) {
            let (2, all) = field? else { continue };
            for field in all.fields()? {
                let (1, entry) = field? else { continue };
                let (mut key, mut list) = (&b""[..], Vec::new());
                for field in entry.fields()? {
                    match field? {
                        (1, value) => key = value.bytes()?,
                        (2, value) => list = Feature::list(value)?,
                        _ => {}
                    }
                }
                lists.insert(key, list);
            }
        }
        Ok(FeatureLists(lists))
    }

    /// Returns the features of a list, one for each step; `None` if the message lacks the list.
    pub(super) fn get(&self, key: &[u8]) -> Option<&[Feature<'a>]> {
        self.0.get(key).map(Vec::as_slice)
    }
}

impl<'a> Feature<'a> {
    fn list(field: Field<'a>) -> Result<Vec<Feature<'a>>, Malformed> {
        let mut all = Vec::new();
        for field in field.fields()? {
            let (1, feature) = field? else { continue };
            all.push(Feature::of(feature)?);
        }
        Ok(all)
    }

    /// Returns the dtype and the encoded list of the feature's values, if it has a list.
    pub(super) fn values(self) -> Option<(DType, &'a [u8])> {
        self.0
    }

    fn of(field: Field<'a>) -> Result<Feature<'a>, Malformed> {
        let mut feature = Feature(None);
        for field in field.fields()? {
            let (number, list) = field?;
            let dtype = match number {
                1 => DType::String,
                2 => DType::Float,
                3 => DType::Int64,
                _ => continue,
            };
            feature = Feature(Some((dtype, list.bytes()?)));
        }
        Ok(feature)
    }
}

/// Decoded values of one dtype.
pub(super) enum Values {
    Ints(Vec<i64>),
    Floats(Vec<f32>),
    Strings(Vec<Bytes>),
}

impl Values {
    pub(super) fn new(dtype: DType) -> Values {
        match dtype {
            DType::Int64 => Values::Ints(Vec::new()),
            DType::Float => Values::Floats(Vec::new()),
            _ => Values::Strings(Vec::new()),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Values::Ints(v) => v.len(),
            Values::Floats(v) => v.len(),
            Values::Strings(v) => v.len(),
        }
    }

    /// Appends the values of an encoded list, whose dtype is that of `self`.
    pub(super) fn read(&mut self, list: &[u8]) -> Result<(), Malformed> {
        for field in Fields::of(list) {
            let (1, value) = field? else { continue };
            match self {
                Values::Ints(v) => value.ints(|i| v.push(i))?,
                Values::Floats(v) => value.floats(|f| v.push(f))?,
                Values::Strings(v) => v.push(Bytes::copy_from_slice(value.bytes()?)),
            }
        }
        Ok(())
    }

    pub(super) fn dtype(&self) -> DType {
        match self {
            Values::Ints(_) => DType::Int64,
            Values::Floats(_) => DType::Float,
            Values::Strings(_) => DType::String,
        }
    }

    /// Appends values of the same dtype; values of another dtype are left out.
    pub(super) fn append_all(&mut self, other: Values) {
        match (self, other) {
            (Values::Ints(v), Values::Ints(more)) => v.extend(more),
            (Values::Floats(v), Values::Floats(more)) => v.extend(more),
            (Values::Strings(v), Values::Strings(more)) => v.extend(more),
            _ => {}
        }
    }

    /// Appends zeros or empty strings up to a length of `len`.
    pub(super) fn pad_to(&mut self, len: usize) {
        match self {
            Values::Ints(v) => v.resize(len, 0),
            Values::Floats(v) => v.resize(len, 0.0),
            Values::Strings(v) => v.resize(len, Bytes::new()),
        }
    }

    /// Appends the elements of a tensor, whose dtype is that of `self`.
    pub(super) fn append(&mut self, tensor: &Tensor) -> graph::Result<()> {
        match self {
            Values::Ints(v) => v.extend_from_slice(tensor.values()?),
            Values::Floats(v) => v.extend_from_slice(tensor.values()?),
            Values::Strings(v) => v.extend_from_slice(tensor.as_strings()?),
        }
        Ok(())
    }

    pub(super) fn into_tensor(self, shape: Shape) -> graph::Result<Tensor> {
        match self {
            Values::Ints(v) => Tensor::from_slice(&v, shape),
            Values::Floats(v) => Tensor::from_slice(&v, shape),
            Values::Strings(v) => Tensor::strings(v, shape),
        }
    }
}
