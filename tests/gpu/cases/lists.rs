//! Inputs for ops on tensor lists and optionals.

use super::{Fallible, Random, WithInt, numbers};
use graph::{DType, Node, Optional, PartialShape, Shape, Tensor, TensorList, Variant};

/// The shape of the elements of the test lists.
const ELEMENT: [usize; 2] = [2, 3];

pub(super) fn inputs(node: &Node, random: &mut Random) -> Fallible<Option<Vec<Vec<Tensor>>>> {
    let types: Vec<DType> = node.input_types()?.iter().map(|port| port.dtype).collect();
    let name = node.op.name();
    let is_list = name.contains("TensorList");
    if !is_list && !name.starts_with("Optional") && types.first() != Some(&DType::Variant) {
        return Ok(None);
    }
    let t = node.attr::<DType>("element_dtype").unwrap_or(DType::Float);
    let full = list(t, &[true, true, true], random)?;
    let holey = list(t, &[true, false, true], random)?;
    let empty = list(t, &[], random)?;
    let (any, element) = (Tensor::scalar(-1i32), numbers(&[2, 3])?);
    Ok(Some(match name {
        "EmptyTensorList" => vec![vec![element, 3i32.into()], vec![any.clone(), any]],
        "TensorListReserve" => vec![vec![element, 3i32.into()], vec![any, 0i32.into()]],
        "TensorListLength" | "TensorListElementShape" => vec![vec![holey], vec![empty]],
        "TensorListResize" => vec![vec![full.clone(), 2i32.into()], vec![full, 5i32.into()]],
        "TensorListGetItem" => [(&full, 2), (&holey, 1)]
            .map(|(list, i)| vec![list.clone(), Tensor::scalar(i), any.clone()])
            .to_vec(),
        "TensorListSetItem" => {
            let item = tensor(t, &ELEMENT, random)?;
            let last = if node.attr("resize_if_index_out_of_bounds")? { 4 } else { 2 };
            [(&full, 1), (&holey, 1), (&full, last)]
                .map(|(list, i)| vec![list.clone(), Tensor::scalar(i), item.clone()])
                .to_vec()
        }
        "TensorListPushBack" => {
            vec![vec![full.clone(), tensor(t, &ELEMENT, random)?], vec![empty, tensor(t, &ELEMENT, random)?]]
        }
        "TensorListPopBack" => vec![vec![full, any.clone()], vec![list(t, &[true, false], random)?, any]],
        "TensorListFromTensor" => {
            vec![
                vec![tensor(t, &[4, 2, 3], random)?, element.clone()],
                vec![tensor(t, &[0, 2, 3], random)?, element],
                vec![tensor(t, &[5], random)?, any.clone()],
                vec![tensor(t, &[1, 16], random)?, any.clone()],
                // The tensor has more rows than one kernel launch moves.
                vec![tensor(t, &[35, 4], random)?, any],
            ]
        }
        "TensorListStack" => {
            // The list has two elements, because the node's attribute `num_elements` is 2.
            let two = list(t, &[true, true], random)?;
            vec![vec![two, any], vec![list(t, &[false, true], random)?, element]]
        }
        "TensorListGather" => vec![
            vec![full.clone(), numbers(&[2, 0, 2])?, any.clone()],
            vec![holey, numbers(&[1, 2])?, any.clone()],
            vec![full.clone(), numbers(&[])?, element],
            vec![full, numbers(&[1, 0, 2].repeat(7))?, any],
        ],
        "TensorListScatter" | "TensorListScatterV2" => {
            let sizes: &[i32] = if name.ends_with("V2") { &[-1, 6, 5] } else { &[0] };
            let mut sets = Vec::new();
            for &size in sizes {
                let mut set = vec![tensor(t, &[3, 2, 3], random)?, numbers(&[4, 0, 1])?, element.clone()];
                set.extend(name.ends_with("V2").then(|| Tensor::scalar(size)));
                sets.push(set);
            }
            sets
        }
        "TensorListScatterIntoExistingList" => vec![
            vec![holey, tensor(t, &[2, 2, 3], random)?, numbers(&[1, 4])?],
            vec![full, tensor(t, &[1, 2, 3], random)?, numbers(&[0])?],
        ],
        "TensorListSplit" => [&[1, 0, 4][..], &[5], &[2, 2, 1]]
            .into_iter()
            .map(|lengths| {
                let lengths = numbers(lengths)?.with_int(DType::Int64)?;
                Ok(vec![tensor(t, &[5, 3], random)?, any.clone(), lengths])
            })
            .collect::<Fallible<_>>()?,
        "TensorListConcat" => vec![vec![list_of(t, &[Some(&[2]), Some(&[2])], &[None], random)?]],
        "TensorListConcatV2" => {
            let rows = numbers(&[-1, 3])?;
            let of = |lengths: &[i32]| numbers(lengths)?.with_int(DType::Int64);
            let ragged = list_of(t, &[Some(&[2, 3]), None, Some(&[4, 3])], &[None, Some(3)], random)?;
            vec![vec![full, any, of(&[])?], vec![ragged, rows, of(&[2, 1, 4])?]]
        }
        "TensorListConcatLists" => {
            vec![vec![full.clone(), holey.clone()], vec![holey, full.clone()], vec![empty, full]]
        }
        "TensorListPushBackBatch" => {
            let both = [full, holey].map(|list| list.as_variants().map(|all| all[0].clone()));
            let both = both.into_iter().collect::<Result<Vec<_>, _>>()?;
            let lists = Tensor::variants(both, Shape::new(&[2])?)?;
            vec![vec![lists, tensor(t, &[2, 2, 3], random)?]]
        }
        "ZerosLike" => of_many_types(random)?.into_iter().map(|variant| vec![variant]).collect(),
        "AddN" => {
            let (some, others) = (of_many_types(random)?, of_many_types(random)?);
            some.into_iter().zip(others).map(|(a, b)| vec![a, b]).collect()
        }
        "OptionalFromValue" => vec![vec![tensor(types[0], &[3], random)?]],
        "OptionalNone" => vec![vec![]],
        "OptionalHasValue" => vec![
            vec![Tensor::variant(Optional::of(vec![random.tensor(DType::Float, &[2])?])?)],
            vec![Tensor::variant(Optional::<Tensor>::NONE)],
        ],
        "OptionalGetValue" => {
            let of = node.attr::<Vec<DType>>("output_types")?[0];
            vec![vec![Tensor::variant(Optional::of(vec![tensor(of, &[1], random)?])?)]]
        }
        _ => return Err(format!("no cases for {name} of variants").into()),
    }))
}

/// Returns a random tensor; in a tensor of variants, each element is a tensor list.
fn tensor(dtype: DType, dims: &[usize], random: &mut Random) -> Fallible<Tensor> {
    if dtype != DType::Variant {
        return random.tensor(dtype, dims);
    }
    let shape = Shape::new(dims)?;
    let mut variants = Vec::new();
    for _ in 0..shape.num_elements() {
        let inner = vec![Some(random.tensor(DType::Float, &[2])?), None];
        variants.push(Variant::new(TensorList::of(DType::Float, PartialShape::unknown(), inner)?));
    }
    Ok(Tensor::variants(variants, shape)?)
}

/// Returns a list with one element of shape [`ELEMENT`] for each entry of `has_value`; elements whose entry is false
/// have no value.
fn list(dtype: DType, has_value: &[bool], random: &mut Random) -> Fallible<Tensor> {
    let shapes: Vec<Option<&[usize]>> = has_value.iter().map(|&has| has.then_some(&ELEMENT[..])).collect();
    list_of(dtype, &shapes, &ELEMENT.map(Some), random)
}

/// Returns a list of elements of the given shapes, with the partial element shape `shape`; an element with shape `None`
/// has no value.
fn list_of(
    dtype: DType,
    elements: &[Option<&[usize]>],
    shape: &[Option<usize>],
    random: &mut Random,
) -> Fallible<Tensor> {
    let element = |dims: &Option<&[usize]>| dims.map(|dims| tensor(dtype, dims, random)).transpose();
    let elements = elements.iter().map(element).collect::<Fallible<Vec<_>>>()?;
    let shape = PartialShape::of_dims(shape.iter().copied());
    Ok(Tensor::variant(TensorList::of(dtype, shape, elements)?))
}

/// Returns variants for `AddN` and `ZerosLike`: tensor lists of several element types, and an optional.
fn of_many_types(random: &mut Random) -> Fallible<Vec<Tensor>> {
    let mut all = Vec::new();
    for dtype in [DType::Float, DType::Half, DType::Int64, DType::UInt8, DType::Int32, DType::Variant] {
        all.push(list(dtype, &[true, false, true], random)?);
    }
    let mut bounded = TensorList::clone(&*all[0].as_variants()?[0].expect::<TensorList>("a list")?);
    bounded.max_num_elements = 3;
    all.push(Tensor::variant(bounded));
    let mixed = vec![random.tensor(DType::Float, &[3])?, random.tensor(DType::Int32, &[2])?];
    all.push(Tensor::variant(Optional::of(mixed)?));
    Ok(all)
}
