"""Tools that fit no skill that there is: twenty of a beekeeper."""

from tests.registry.toolbox import tool

_DEEDS = (
    "inspect_hive:Inspect a beehive and note the state of its frames",
    "harvest_honey:Harvest honey from the frames of a beehive",
    "count_frames:Count the frames of brood and honey in a beehive",
    "requeen_colony:Replace the queen bee of a colony",
    "mark_queen:Mark the queen bee of a hive with a colour",
    "feed_colony:Feed a bee colony with sugar syrup",
    "treat_varroa:Treat a bee colony against varroa mites",
    "count_varroa:Count varroa mites that fell in a beehive",
    "split_colony:Split a strong bee colony into two hives",
    "merge_colonies:Merge two weak bee colonies into one hive",
    "catch_swarm:Catch a swarm of bees and hive it",
    "predict_swarm:Predict whether a bee colony is about to swarm",
    "move_hive:Move a beehive to another apiary",
    "winter_hive:Prepare a beehive and its bees for the winter",
    "weigh_hive:Weigh a beehive to see how much honey the bees have",
    "extract_wax:Melt beeswax from old frames of a hive",
    "bottle_honey:Bottle the honey of a harvest of the apiary",
    "add_super:Add a honey super to a beehive",
    "smoke_hive:Calm the bees of a hive with smoke before it is opened",
    "breed_queen:Breed queen bees from a strong colony of the apiary",
)
BEES = [tool(*deed.split(":")) for deed in _DEEDS]
