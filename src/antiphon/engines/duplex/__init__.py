"""Full duplex made of turns, for engines that only answer when they are asked."""
