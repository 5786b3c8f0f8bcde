//! The orders in which queues return their elements.

use crate::numeric::philox::{Philox, PhiloxWords};
use device::value::{AnyTensor, ListElement};
use device::{Error, Result};
use graph::DType;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// A queue element: one tensor per component, in the memory of the queue's device or of the host.
pub type Element = SmallVec<[AnyTensor; 2]>;

/// The elements of a queue in the order of its kind.
pub(super) trait Order: Send {
    /// Returns the number of elements in the queue.
    fn len(&self) -> usize;

    /// Adds an element at its position in the order.
    fn push(&mut self, element: Element);

    /// Returns the elements in a sequence that, pushed one by one to an empty order, recreates the order of the
    /// elements.
    fn elements(&self) -> Vec<Element>;

    /// Removes and returns the element that is dequeued next.
    fn pop(&mut self) -> Option<Element>;

    /// Puts back the element that was popped last, so that it is popped next.
    fn put_back(&mut self, element: Element) {
        self.push(element);
    }

    /// Returns the number of elements that cannot be dequeued until the queue is closed.
    fn min_remaining(&self) -> usize {
        0
    }

    /// Returns whether the order ranks elements: an element added later may precede the present ones, so a dequeue
    /// takes no element before it can take all.
    fn is_ranked(&self) -> bool {
        false
    }
}

/// The order of a FIFO queue: first in, first out.
#[derive(Default)]
pub(super) struct Fifo(VecDeque<Element>);

impl Order for Fifo {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn push(&mut self, element: Element) {
        self.0.push_back(element);
    }

    fn elements(&self) -> Vec<Element> {
        self.0.iter().cloned().collect()
    }

    fn pop(&mut self) -> Option<Element> {
        self.0.pop_front()
    }

    fn put_back(&mut self, element: Element) {
        self.0.push_front(element);
    }
}

/// The order of a shuffling queue: each element is drawn at random.
pub(super) struct Shuffle {
    elements: Vec<Element>,
    min_remaining: usize,
    numbers: PhiloxWords,
}

impl Shuffle {
    pub(super) fn new(min_remaining: usize, seeds: (i64, i64)) -> Shuffle {
        Shuffle {
            elements: Vec::new(),
            min_remaining,
            numbers: PhiloxWords::new(Philox::seeded(seeds.0, seeds.1)),
        }
    }
}

impl Order for Shuffle {
    fn len(&self) -> usize {
        self.elements.len()
    }

    fn push(&mut self, element: Element) {
        self.elements.push(element);
    }

    fn elements(&self) -> Vec<Element> {
        self.elements.clone()
    }

    fn pop(&mut self) -> Option<Element> {
        match self.elements.len() {
            0 => None,
            count => {
                let draw = u64::from(self.numbers.next()) % count as u64;
                Some(self.elements.swap_remove(draw as usize))
            }
        }
    }

    fn min_remaining(&self) -> usize {
        self.min_remaining
    }
}

/// The order of a priority queue: elements with a lower priority number come first. Elements of equal priority come in
/// the order of TensorFlow's heap, which clients can observe: a binary heap in which the hole left by the first element
/// moves down to a leaf, and the last element then rises from the hole.
#[derive(Default)]
pub(super) struct Priority(Vec<(i64, Element)>);

impl Priority {
    /// Moves the element at index `place` towards the root of the heap until its parent is not greater.
    fn rise(&mut self, mut place: usize) {
        while place > 0 {
            let parent = (place - 1) / 2;
            if self.0[parent].0 <= self.0[place].0 {
                return;
            }
            self.0.swap(parent, place);
            place = parent;
        }
    }
}

/// Returns the priority of an element, its first component.
pub(super) fn priority(element: &Element) -> Result<i64> {
    match element.first() {
        Some(priority) if priority.dtype() == DType::Int64 => Ok(priority.tensor()?.item::<i64>()?),
        other => Err(Error::invalid(format!("a priority is an int64 scalar, got {other:?}"))),
    }
}

impl Order for Priority {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn push(&mut self, element: Element) {
        // The caller has checked the priority before it enqueued the element.
        let of_element = priority(&element).unwrap_or(i64::MAX);
        self.0.push((of_element, element));
        self.rise(self.0.len() - 1);
    }

    fn elements(&self) -> Vec<Element> {
        // An element that is pushed in this order stays at its index, because its parent has been pushed before and is
        // not greater.
        self.0.iter().map(|(_, element)| element.clone()).collect()
    }

    fn pop(&mut self) -> Option<Element> {
        let last = self.0.pop()?;
        let Some(first) = self.0.first_mut() else { return Some(last.1) };
        let top = std::mem::replace(first, last);
        // The hole, at which the last element has been put, moves down along the lesser children.
        let (mut hole, count) = (0, self.0.len());
        loop {
            let right = 2 * hole + 2;
            let child = match count {
                _ if right < count && self.0[right].0 <= self.0[right - 1].0 => right,
                _ if right - 1 < count => right - 1,
                _ => break,
            };
            self.0.swap(hole, child);
            hole = child;
        }
        self.rise(hole);
        Some(top.1)
    }

    fn is_ranked(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use graph::Tensor;

    fn element(priority: i64, value: i32) -> Element {
        [Tensor::from(priority), Tensor::from(value)].map(AnyTensor::from).into_iter().collect()
    }

    fn drain(mut order: impl Order) -> Result<Vec<i32>> {
        let mut values = Vec::new();
        while let Some(element) = order.pop() {
            values.push(element[1].tensor()?.item::<i32>()?);
        }
        Ok(values)
    }

    /// Tests the order of equal priorities against that of TensorFlow 2.21.
    #[test]
    fn equal_priorities_come_in_the_order_of_tensorflow() -> Result<()> {
        let mut order = Priority::default();
        for i in 0..60 {
            order.push(element((i64::from(i) * 7919) % 5, i));
        }
        let expected = [
            0, 5, 30, 55, 25, 50, 10, 20, 45, 40, 15, 35, 14, 29, 59, 24, 54, 49, 9, 44, 19, 4, 39, 34, 58,
            13, 28, 53, 23, 48, 43, 3, 38, 18, 8, 33, 27, 47, 12, 2, 57, 37, 22, 52, 42, 7, 17, 32, 51, 56,
            31, 1, 11, 6, 41, 16, 21, 46, 26, 36,
        ];
        assert_eq!(drain(order)?, expected);
        Ok(())
    }

    #[test]
    fn a_seeded_shuffle_draws_in_the_order_of_tensorflow() -> Result<()> {
        let mut order = Shuffle::new(0, (1, 7));
        for i in 0..20 {
            order.push(element(0, i));
        }
        assert_eq!(drain(order)?[..11], [1, 15, 2, 13, 4, 6, 5, 11, 18, 16, 17]);
        Ok(())
    }

    #[test]
    fn first_in_is_first_out() -> Result<()> {
        let mut order = Fifo::default();
        (0..3).for_each(|i| order.push(element(0, i)));
        let first = order.pop().unwrap_or_default();
        order.put_back(first);
        assert_eq!(drain(order)?, [0, 1, 2]);
        Ok(())
    }
}
