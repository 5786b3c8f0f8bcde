//! The order in which ready nodes start: those near an operation of the network or of another device start first, so
//! that the operation proceeds while this device computes on.

use smallvec::SmallVec;
use std::cmp::Reverse;
use std::collections::VecDeque;

/// The distance of each unit from the nearest operation that another device awaits, in edges.
pub(crate) struct Proximity(Vec<u32>);

/// The distance of a unit that leads to no such operation.
const NOWHERE: u32 = u32::MAX;

impl Proximity {
    /// Computes the distances of `count` units. `is_awaited` returns whether a unit is such an operation itself, and
    /// `successors` returns the units that wait for a unit.
    pub(crate) fn new<'a>(
        count: usize,
        is_awaited: impl Fn(u32) -> bool,
        successors: impl Fn(u32) -> &'a [u32],
    ) -> Proximity {
        let units = 0..count as u32;
        let mut distances = vec![NOWHERE; count];
        let mut reached: VecDeque<u32> = units.clone().filter(|&unit| is_awaited(unit)).collect();
        if reached.is_empty() {
            return Proximity(distances);
        }
        let mut producers: Vec<SmallVec<[u32; 4]>> = vec![SmallVec::new(); count];
        for unit in units {
            successors(unit).iter().for_each(|&to| producers[to as usize].push(unit));
        }
        reached.iter().for_each(|&unit| distances[unit as usize] = 0);
        while let Some(unit) = reached.pop_front() {
            let farther = distances[unit as usize] + 1;
            for &producer in &producers[unit as usize] {
                let distance = &mut distances[producer as usize];
                if *distance == NOWHERE {
                    *distance = farther;
                    reached.push_back(producer);
                }
            }
        }
        Proximity(distances)
    }

    /// Sorts units that become ready together: the nearest are last, because the unit that is made ready last starts
    /// first. Equally near ones keep their order.
    pub(crate) fn sort(&self, units: &mut [u32]) {
        units.sort_by_key(|&unit| Reverse(self.0[unit as usize]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The gradient of a layer's weights leads to a reduction at once; the gradient of its input leads to one only by way
    /// of the layer before.
    #[test]
    fn units_near_an_awaited_operation_are_last() {
        let (of_input, of_weights, reduction, before, reduction_before, unrelated) = (0, 1, 2, 3, 4, 5);
        let edges: [&[u32]; 6] = [&[before], &[reduction], &[], &[reduction_before], &[], &[]];
        let is_awaited = |unit| unit == reduction || unit == reduction_before;
        let proximity = Proximity::new(6, is_awaited, |unit| edges[unit as usize]);
        let mut ready = [reduction, of_weights, of_input, unrelated, before];
        proximity.sort(&mut ready);
        assert_eq!(ready, [unrelated, of_input, of_weights, before, reduction]);
    }

    /// A cycle of a loop ends the search.
    #[test]
    fn loops_have_distances() {
        let edges: [&[u32]; 3] = [&[1], &[0, 2], &[]];
        let proximity = Proximity::new(3, |unit| unit == 2, |unit| edges[unit as usize]);
        let mut ready = [2, 1, 0];
        proximity.sort(&mut ready);
        assert_eq!(ready, [0, 1, 2]);
    }
}
